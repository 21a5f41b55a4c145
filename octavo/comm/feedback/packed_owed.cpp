// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/packed_owed.h"

#include <ATen/ATen.h>

#include "octavo/comm/contribution.h"
#include "octavo/comm/state/packed.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

PackedOwed::PackedOwed(StateStore& store, std::size_t parameter, Repayment repayment)
    : worker_(store.at(parameter, kPackedOwed)),
      owner_(store.at(parameter, kPackedOwedToAll)),
      own_(store.at(parameter, kPackedOwedToOwn)),
      rank_(store.rank()),
      world_size_(store.world_size()),
      repayment_(repayment) {}

std::uint64_t PackedOwed::granule() const { return packing().traits().granule; }

PackedOwed::Place PackedOwed::open(Versioned& owed, Extent extent, const Contribution& tensor, const Codec& codec,
                                   c10::Device device) const {
  const std::uint64_t bytes = packed_bytes(extent, tensor.count, rank_, world_size_, tensor.ownership);
  if (bytes == 0 || !(codec.traits().leaves_error || owed.tensor().defined())) return {};
  const bool begins_anew = repayment_.period != Repayment::kNever && tensor.step % repayment_.period == 0;
  const Place place = {begins_anew ? nullptr : owed.now<std::uint8_t>(device), owed.next<std::uint8_t>(bytes, device)};
  const std::uint64_t size = tensor.ownership.range_size(tensor.count, world_size_);
  if ((tensor.count | size) % 4 != 0) {  // payloads end in padding; zeros there make equal states have equal bytes
    elements_at(place.next, at::kByte, bytes, device).zero_();
  }
  return place;
}

void PackedOwed::begin(c10::Device device, const Contribution& tensor, float) {
  count_ = tensor.count;
  ownership_ = tensor.ownership;
  owed_share_ = tensor.owed_share;
  own_range_ = owned_range(count_, rank_, world_size_, ownership_);
  up_ = open(worker_, Extent::sent, tensor, *tensor.up, device);
  down_ = tensor.owner_keeps_sum ? Place() : open(owner_, Extent::owned, tensor, *tensor.down, device);
  const bool sends_to_itself = tensor.codes_own && world_size_ > 1;
  of_own_ = sends_to_itself ? open(own_, Extent::own_contribution, tensor, *tensor.up, device) : Place();
}

PackedOwed::Place PackedOwed::of(const SentPart& part) const {
  if (part.way == Way::down) return down_;
  if (part.range.first == own_range_.first) return of_own_;
  if (!up_.next) return {};
  const std::uint64_t offset = packed_offset(part.range, count_, rank_, world_size_, ownership_);
  return {up_.now ? up_.now + offset : nullptr, up_.next + offset};
}

const float* PackedOwed::unpacked(const SentPart& part, const Place& place, float* memory) const {
  if (!place.now) return nullptr;
  PayloadPart packed = part.payload;
  packed.payload = const_cast<std::uint8_t*>(place.now);  // it is only read
  packing().decode(part.device, packed, Store::assign, memory, nullptr);
  if (part.way == Way::up && repayment_.decay != 1) floats_at(memory, part.count(), part.device).mul_(repayment_.decay);
  return memory;
}

void PackedOwed::encode(const SentPart& part, const EncodeInput& input) {
  const Place place = of(part);
  if (!place.next) return FeedbackMemory::encode(part, input);
  static thread_local at::Tensor owed_memory, sent_memory, next_memory;
  const LaunchScope scope(part.device);
  const ScratchFloats before(part.device, part.count(), owed_memory), sent(part.device, part.count(), sent_memory);
  const ScratchFloats next(part.device, part.count(), next_memory);
  const float* const owed = unpacked(part, place, before.data());
  const float share = part.way == Way::up ? repayment_.share * owed_share_ : repayment_.share;
  scope.kernels().add_owed(scope.queue(), input, share, owed, nullptr, part.count(), sent.data());
  EncodeInput damped = {sent.data()};
  damped.rounding_key = input.rounding_key;
  damped.first = input.first;
  part.codec->encode(part.device, damped, part.payload, nullptr);
  part.codec->decode(part.device, part.payload, Store::assign, sent.data(), nullptr);
  scope.kernels().keep_owed(scope.queue(), input, owed, sent.data(), part.count(), next.data());
  EncodeInput kept = {next.data()};
  kept.rounding_key = rules::derive_key(input.rounding_key, kPackedOwedPurpose);
  kept.first = input.first;
  PayloadPart packed = part.payload;
  packed.payload = place.next;
  packing().encode(part.device, kept, packed, nullptr);
}

}  // namespace octavo
