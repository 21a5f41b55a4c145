// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/ef21.h"

#include "octavo/comm/contribution.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

Ef21Memory::Ef21Memory(StateStore& store, std::size_t parameter)
    : sent_(store.at(parameter, kSentEstimate)),
      received_(store.at(parameter, kReceivedEstimates)),
      shared_(store.at(parameter, kSharedEstimate)),
      rank_(store.rank()),
      world_size_(store.world_size()) {}

Ef21Memory::Estimate Ef21Memory::open(Versioned& state, std::uint64_t count, c10::Device device) {
  if (count == 0) return {};
  return {state.now<float>(device), state.next<float>(count, device)};
}

void Ef21Memory::begin(c10::Device device, const Contribution& tensor, float) {
  layout_ = others_ranges(tensor.count, rank_, world_size_, tensor.ownership);
  to_owners_ = open(sent_, layout_.count, device);
  of_others_ = open(received_, layout_.own.count * static_cast<std::uint64_t>(world_size_ - 1), device);
  // even where this rank has no elements of it, so that digest() is the same on all ranks of a host
  of_all_ = {shared_.now<float>(device), shared_.next<float>(tensor.count, device)};
}

Ef21Memory::Estimate Ef21Memory::of_sent(const SentPart& part) const {
  if (part.way == Way::down) return of_all_.from(part.first());
  return to_owners_.from(layout_.index(part.range.first) + part.payload.part.first);
}

Ef21Memory::Estimate Ef21Memory::of_received(const SentPart& part) const {
  if (part.way == Way::down) return of_all_.from(part.first());
  const auto number = static_cast<std::uint64_t>(part.sender - (part.sender > rank_ ? 1 : 0));
  return of_others_.from(number * layout_.own.count + part.payload.part.first);
}

void Ef21Memory::encode(const SentPart& part, const EncodeInput& input) {
  static thread_local at::Tensor memory;
  const LaunchScope scope(part.device);
  const ScratchFloats scratch(part.device, part.count(), memory);
  const auto [now, next] = of_sent(part);
  scope.kernels().subtract_estimate(scope.queue(), input, now, part.count(), scratch.data());
  EncodeInput difference = {scratch.data()};
  difference.rounding_key = input.rounding_key;
  difference.first = input.first;
  difference.estimate = now;
  part.codec->encode(part.device, difference, part.payload, nullptr);
  if (part.way == Way::down) return;  // this rank decodes it, as all ranks do
  part.codec->decode(part.device, part.payload, Store::assign, scratch.data(), nullptr);
  scope.kernels().add_to_estimate(scope.queue(), scratch.data(), now, part.count(), part.codec->traits().learnt_share,
                                  Store::assign, nullptr, next, nullptr);
}

void Ef21Memory::decode(const SentPart& part, Store store, float* out, std::uint32_t* nonfinite) {
  static thread_local at::Tensor memory;
  const LaunchScope scope(part.device);
  const ScratchFloats sent(part.device, part.count(), memory);
  part.codec->decode(part.device, part.payload, Store::assign, sent.data(), nonfinite);
  const auto [now, next] = of_received(part);
  scope.kernels().add_to_estimate(scope.queue(), sent.data(), now, part.count(), part.codec->traits().learnt_share,
                                  store, out, next, nonfinite);
}

void Ef21::require_fit(const CodecText& text, const Codec& codec) const {
  const CodecTraits& traits = codec.traits();
  if (!traits.keeps_magnitude) text.refuse("votes have no magnitude, which differences need");
  if (!traits.leaves_error && traits.learnt_share == 1) text.refuse("this codec leaves no error that could be made up");
}

std::shared_ptr<FeedbackMemory> Ef21::remember(StateStore& store, std::size_t parameter) const {
  return std::make_shared<Ef21Memory>(store, parameter);
}

FeedbackPtr make_ef21(const CodecText& text) {
  if (!text.options.empty()) text.refuse("+ef21 takes no options");
  return std::make_shared<Ef21>();
}

}  // namespace octavo
