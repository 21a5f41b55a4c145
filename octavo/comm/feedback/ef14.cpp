// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/ef14.h"

#include "octavo/comm/contribution.h"
#include "octavo/comm/feedback/packed_owed.h"
#include "octavo/comm/state/packed.h"
#include "octavo/comm/state/redistribute.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

constexpr std::string_view kIn8Bits = "8bit";

}  // namespace

std::string Ef14::text() const {
  std::string text = "ef";
  if (decay_ != 1) text.append(":").append(shortest(decay_));
  if (kept_ == Kept::in_8_bits) text.append(":").append(kIn8Bits);
  return text;
}

std::vector<Role> Ef14::roles() const {
  if (kept_ == Kept::in_8_bits) return {kPackedOwed, kPackedOwedToAll, kPackedOwedToOwn};
  return {kWorkerResidual, kOwnerResidual, kOwnResidual};
}

void Ef14::require_fit(const CodecText& text, const LinearMap&) const {
  if (kept_ == Kept::in_8_bits) {
    text.refuse("what a linear map leaves over is kept in bfloat16: leave 8bit out, as in powersgd:4+ef");
  }
  if (decay_ == 1) return;
  text.refuse("what a linear map leaves over does not decay: leave the decay out, as in powersgd:4+ef");
}

void Ef14::require_fit(const CodecText& text, const Codec& codec) const {
  if (!codec.traits().leaves_error) text.refuse("this codec leaves no error that could be fed back");
  if (kept_ == Kept::in_8_bits) require_one_sum_fits(text, codec);
}

std::shared_ptr<FeedbackMemory> Ef14::remember(StateStore& store, std::size_t parameter) const {
  const auto decay = static_cast<float>(decay_);
  if (kept_ == Kept::in_8_bits) return std::make_shared<PackedOwed>(store, parameter, Repayment{.decay = decay});
  return std::make_shared<Ef14Memory>(store.at(parameter, kWorkerResidual), store.at(parameter, kOwnerResidual),
                                      store.rank(), store.world_size(), decay, &store.at(parameter, kOwnResidual));
}

OwedByRange Ef14::owed(const KeptByRole& kept, const ParameterInfo& parameter, int rank, int world_size) const {
  if (world_size == 1) return {};  // nothing is sent
  const auto count = parameter.count;
  const auto ownership = parameter.ownership;
  const auto floats = [&](const Role& in_bfloat16, const Role& in_8_bits) {
    const at::Tensor values = kept(kept_ == Kept::in_8_bits ? in_8_bits : in_bfloat16);
    if (!values.defined() || kept_ == Kept::bfloat16) return values;
    return unpack(values, in_8_bits.extent, count, rank, world_size, ownership);
  };
  const at::Tensor sent = floats(kWorkerResidual, kPackedOwed), own = floats(kOwnResidual, kPackedOwedToOwn);
  if (!sent.defined() && !own.defined()) return {};
  return [=, decay = decay_](Range range) {
    at::Tensor values = in_their_places(range, sent, own, count, rank, world_size, ownership);
    return decay == 1 ? values : values.mul_(decay);
  };
}

FeedbackPtr make_ef14(const CodecText& text) {
  constexpr auto kExpected =
      "+ef takes a decay above 0, at most 1, as in topk:64/4096:sign+ef:0.95, and after it 8bit, as in int4+ef:8bit";
  std::vector<std::string_view> options = text.options;
  const bool in_8_bits = !options.empty() && options.back() == kIn8Bits;
  if (in_8_bits) options.pop_back();
  if (options.size() > 1) text.refuse(kExpected);
  const double decay = options.empty() ? 1.0 : text.fraction(options[0], kExpected);
  return std::make_shared<Ef14>(decay, in_8_bits ? Ef14::Kept::in_8_bits : Ef14::Kept::bfloat16);
}

namespace {

template <class Element>
typename Owed<Element>::Place open_owed(c10::Device device, Versioned& owed, std::uint64_t size, const Codec& codec) {
  if (size == 0 || !(codec.traits().leaves_error || owed.tensor().defined())) return {};
  return {owed.now<Element>(device), owed.next<Element>(size, device)};
}

}  // namespace

template <class Element>
void Owed<Element>::begin(c10::Device device, const Contribution& tensor) {
  others_ = others_ranges(tensor.count, rank_, world_size_, tensor.ownership);
  up_ = open_owed<Element>(device, worker_, others_.count, *tensor.up);
  down_ = open_owed<Element>(device, owner_, tensor.owner_keeps_sum ? 0 : others_.own.count, *tensor.down);
}

template <class Element>
typename Owed<Element>::Place Owed<Element>::at(const SentPart& part) const {
  const bool up = part.way == Way::up;
  const std::uint64_t first = (up ? others_.index(part.range.first) : 0) + part.payload.part.first;
  const Place& all = up ? up_ : down_;
  return {all.now ? all.now + first : nullptr, all.next ? all.next + first : nullptr};
}

template class Owed<rules::Residual>;
template class Owed<float>;

void Ef14Memory::begin(c10::Device device, const Contribution& tensor, float) {
  residuals_.begin(device, tensor);
  owed_share_ = tensor.owed_share;
  own_range_ = owned_range(tensor.count, rank_, world_size_, tensor.ownership);
  of_own_ = {};
  if (own_ && tensor.codes_own && world_size_ > 1)
    of_own_ = open_owed<rules::Residual>(device, *own_, own_range_.count, *tensor.up);
}

Residuals::Place Ef14Memory::at(const SentPart& part) const {
  if (part.way == Way::down || part.range.first != own_range_.first) return residuals_.at(part);
  const std::uint64_t first = part.payload.part.first;
  return {of_own_.now ? of_own_.now + first : nullptr, of_own_.next ? of_own_.next + first : nullptr};
}

void Ef14Memory::encode(const SentPart& part, const EncodeInput& input) {
  const auto [now, next] = at(part);
  EncodeInput with_residual = input;
  with_residual.residual = now;
  const float sent_share = decay_ * owed_share_, kept_share = decay_ - sent_share;
  if (!now || part.way == Way::down || sent_share == 1) {
    return part.codec->encode(part.device, with_residual, part.payload, next);
  }
  static thread_local at::Tensor memory;
  const LaunchScope scope(part.device);
  const ScratchFloats scratch(part.device, part.count() / 2 + 1, memory);  // a float holds two residuals
  auto* const decayed = reinterpret_cast<rules::Residual*>(scratch.data());
  const std::uint64_t key = rules::derive_key(input.rounding_key, kSentSharePurpose);
  scope.kernels().decay_residual(scope.queue(), now, sent_share, key, input.first, part.count(), Store::assign,
                                 decayed);
  with_residual.residual = decayed;
  part.codec->encode(part.device, with_residual, part.payload, next);
  if (kept_share == 0 || !next) return;
  const std::uint64_t key_of_kept = rules::derive_key(input.rounding_key, kKeptSharePurpose);
  scope.kernels().decay_residual(scope.queue(), now, kept_share, key_of_kept, input.first, part.count(), Store::add,
                                 next);
}

}  // namespace octavo
