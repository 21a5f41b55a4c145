// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/two_phase.h"

#include <algorithm>
#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/schedule/float_part.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

void TwoPhase::begin(Bucket bucket) {
  const WaitAtEnd buffers_are_free(device_);
  Stopwatch watch;
  bucket_ = std::move(bucket);
  up_.begin(bucket_.tensors, bucket_.digest);
  begun_ = 1;
  down_transfers_ = packs(bucket_.tensors, Way::down, wire_.world_size()) ? 2 : 1;
  watch.lap(seconds_.encode);
}

void TwoPhase::advance() {
  const WaitAtEnd buffers_are_free(device_);
  Stopwatch watch;
  ++begun_;
  if (begun_ <= up_.transfers()) {
    up_.advance();
    return watch.lap(seconds_.wait_up);
  }
  if (begun_ > up_.transfers() + 1) {
    down_.advance();
    return watch.lap(seconds_.wait_down);
  }
  up_.wait();
  watch.lap(seconds_.wait_up);
  if (up_.stays_here()) return;
  down_.begin(bucket_.tensors, bucket_.digest);
  up_.reduce(bucket_.divisor, down_.own_pieces(), down_.own_bytes());
  down_.send();
  watch.lap(seconds_.reduce);
}

Outcome TwoPhase::finish() {
  const WaitAtEnd buffers_are_free(device_);
  Stopwatch watch;
  std::uint32_t* const nonfinite = cleared_word(nonfinite_, device_);
  const bool all_stay = up_.stays_here();
  if (!all_stay) {
    down_.wait();
    watch.lap(seconds_.wait_down);
    down_.decode_sums(up_.power(), nonfinite);
  }
  for (std::size_t t = 0; t < bucket_.tensors.size(); ++t) {
    if (all_stay || up_.power()[t] == 0) keep_here(bucket_.tensors[t], bucket_.divisor, nonfinite);
  }
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  bucket_ = {};  // its memory is the caller's
  return {*nonfinite == 0, up_.power(), packed()};
}

std::vector<PackedFigures> TwoPhase::packed() const {
  std::vector<PackedFigures> both(up_.packed().begin(), up_.packed().end());
  both.resize(std::max(both.size(), down_.packed().size()));
  for (std::size_t t = 0; t < down_.packed().size(); ++t) both[t] += down_.packed()[t];
  return both;
}

void TwoPhase::keep_here(const Contribution& tensor, double divisor, std::uint32_t* nonfinite) {
  constexpr std::uint64_t kPart = 1U << 20;
  const Codec& exact = block_coding(BlockCodec::fp32);
  const bool is_alone = up_.stays_here();
  const float sum_of_equal =
      is_alone ? 1.0F : static_cast<float>(wire_.world_size() / divisor);  // sum of W equal values
  for (std::uint64_t first = 0; first < tensor.count; first += kPart) {
    const std::uint64_t count = std::min(kPart, tensor.count - first);
    const PayloadPart part = {reserve_on_device(exact_, exact.payload_bytes(count), device_), count, {0, count}};
    const FloatPart values(device_, tensor, first, count);
    EncodeInput input = tensor.input(first, values.load());
    input.momentum_weight *= sum_of_equal;
    exact.encode(device_, input, part, nullptr);
    if (!is_alone) floats_at(values.data(), count, device_).zero_();  // a rank's -0 becomes the 0 of all ranks
    exact.decode(device_, part, is_alone ? Store::assign : Store::add, values.data(), nonfinite);
    values.store();
  }
}

}  // namespace octavo
