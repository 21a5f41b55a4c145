// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/econtrol.h"

#include "octavo/comm/contribution.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

class EControlMemory final : public Ef21Memory {
 public:
  EControlMemory(StateStore& store, std::size_t parameter, double eta)
      : Ef21Memory(store, parameter),
        owed_(store.at(parameter, kOwed), store.at(parameter, kOwedToAll), store.rank(), store.world_size()),
        eta_(static_cast<float>(eta)) {}

  void begin(c10::Device device, const Contribution& tensor, float power) override {
    Ef21Memory::begin(device, tensor, power);
    owed_.begin(device, tensor);
  }
  void encode(const SentPart& part, const EncodeInput& input) override;

 private:
  Owed<float> owed_;
  float eta_;
};

void EControlMemory::encode(const SentPart& part, const EncodeInput& input) {
  static thread_local at::Tensor sent_memory, received_memory;
  const LaunchScope scope(part.device);
  const ScratchFloats sent(part.device, part.count(), sent_memory);
  const ScratchFloats received(part.device, part.count(), received_memory);
  const Estimate estimate = of_sent(part);
  const auto [owed, next_owed] = owed_.at(part);
  scope.kernels().add_owed(scope.queue(), input, eta_, owed, estimate.now, part.count(), sent.data());
  EncodeInput difference = {sent.data()};
  difference.rounding_key = input.rounding_key;
  difference.first = input.first;
  difference.estimate = estimate.now;
  part.codec->encode(part.device, difference, part.payload, nullptr);
  part.codec->decode(part.device, part.payload, Store::assign, sent.data(), nullptr);
  float* const next = part.way == Way::up ? estimate.next : nullptr;  // down: this rank decodes it, as all ranks do
  scope.kernels().add_to_estimate(scope.queue(), sent.data(), estimate.now, part.count(), 1.0F, Store::assign,
                                  received.data(), next, nullptr);
  scope.kernels().keep_owed(scope.queue(), input, owed, received.data(), part.count(), next_owed);
}

}  // namespace

std::string EControl::text() const { return eta_ == kEta ? "econtrol" : "econtrol:" + shortest(eta_); }

std::vector<Role> EControl::roles() const {
  std::vector<Role> roles = Ef21().roles();
  roles.insert(roles.end(), {kOwed, kOwedToAll});
  return roles;
}

void EControl::require_fit(const CodecText& text, const Codec& codec) const {
  const CodecTraits& traits = codec.traits();
  if (!traits.keeps_magnitude) text.refuse("votes have no magnitude, which differences need");
  if (traits.learnt_share < 1) text.refuse("econtrol accumulates what is not sent: leave :unbiased out");
  if (!traits.leaves_error) text.refuse("this codec leaves no error that could be made up");
  require_one_sum_fits(text, codec);
}

std::shared_ptr<FeedbackMemory> EControl::remember(StateStore& store, std::size_t parameter) const {
  return std::make_shared<EControlMemory>(store, parameter, eta_);
}

FeedbackPtr make_econtrol(const CodecText& text) {
  constexpr auto kExpected = "econtrol takes a part above 0, at most 1, as in int4+econtrol:0.1";
  if (text.options.empty()) return std::make_shared<EControl>();
  if (text.options.size() > 1) text.refuse(kExpected);
  return std::make_shared<EControl>(text.fraction(text.options[0], kExpected));
}

}  // namespace octavo
