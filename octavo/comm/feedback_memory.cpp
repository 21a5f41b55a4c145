// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback_memory.h"

namespace octavo {

void FeedbackMemory::begin(c10::Device, const Contribution&, float) {}

void FeedbackMemory::encode(const SentPart& part, const EncodeInput& input) {
  part.codec->encode(part.device, input, part.payload, nullptr);
}

void FeedbackMemory::decode(const SentPart& part, Store store, float* out, std::uint32_t* nonfinite) {
  part.codec->decode(part.device, part.payload, store, out, nonfinite);
}

const std::shared_ptr<FeedbackMemory>& FeedbackMemory::none() {
  static const auto memory = std::make_shared<FeedbackMemory>();
  return memory;
}

}  // namespace octavo
