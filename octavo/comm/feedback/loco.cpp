// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/loco.h"

#include <ATen/ATen.h>

#include "octavo/comm/schedule/contribution.h"
#include "octavo/comm/state/packed.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

class LocoMemory final : public Memory {
 public:
  LocoMemory(StateStore& store, std::size_t parameter, double beta, std::uint64_t period)
      : worker_(store.at(parameter, kPackedOwed)),
        owner_(store.at(parameter, kPackedOwedToAll)),
        rank_(store.rank()),
        world_size_(store.world_size()),
        part_(static_cast<float>(1.0 - beta)),
        period_(period) {}

  void begin(c10::Device device, const Contribution& tensor, float power) override;
  void encode(const SentPart& part, const EncodeInput& input) override;
  std::uint64_t granule() const override { return packing().traits().granule; }

 private:
  struct Place {
    const std::uint8_t* now = nullptr;  // null: nothing is owed
    std::uint8_t* next = nullptr;
  };
  Place open(Versioned& owed, Extent extent, const Contribution& tensor, c10::Device device) const;
  /// The payload of a range.
  Place of(const SentPart& part) const;

  Versioned &worker_, &owner_;
  int rank_, world_size_;
  float part_;  // of what is owed, that a step adds
  std::uint64_t period_, count_ = 0;
  Ownership ownership_;
  Place up_, down_;
};

LocoMemory::Place LocoMemory::open(Versioned& owed, Extent extent, const Contribution& tensor,
                                   c10::Device device) const {
  const std::uint64_t bytes = packed_bytes(extent, tensor.count, rank_, world_size_, tensor.ownership);
  if (bytes == 0) return {};
  const bool begins_anew = tensor.step % period_ == 0;
  const Place place = {begins_anew ? nullptr : owed.now<std::uint8_t>(device), owed.next<std::uint8_t>(bytes, device)};
  const std::uint64_t share = tensor.ownership.share(tensor.count, world_size_);
  if ((tensor.count | share) % 4 != 0) {  // payloads end in padding: equal states have equal bytes
    elements_at(place.next, at::kByte, bytes, device).zero_();
  }
  return place;
}

void LocoMemory::begin(c10::Device device, const Contribution& tensor, float) {
  count_ = tensor.count;
  ownership_ = tensor.ownership;
  up_ = open(worker_, Extent::sent, tensor, device);
  down_ = tensor.owner_keeps_sum ? Place() : open(owner_, Extent::owned, tensor, device);
}

LocoMemory::Place LocoMemory::of(const SentPart& part) const {
  if (part.way == Way::down) return down_;
  const std::uint64_t offset = packed_offset(part.range, count_, rank_, world_size_, ownership_);
  return {up_.now ? up_.now + offset : nullptr, up_.next + offset};
}

void LocoMemory::encode(const SentPart& part, const EncodeInput& input) {
  constexpr std::uint64_t kOfMemory = 3;  // the bits that it is rounded by
  const Place place = of(part);
  if (!place.next) return Memory::encode(part, input);  // the owner keeps this sum as it is
  static thread_local at::Tensor owed_memory, sent_memory, next_memory;
  const LaunchScope scope(part.device);
  const ScratchFloats before(part.device, part.count(), owed_memory), sent(part.device, part.count(), sent_memory);
  const ScratchFloats next(part.device, part.count(), next_memory);
  PayloadPart packed = part.payload;
  if (place.now) {
    packed.payload = const_cast<std::uint8_t*>(place.now);  // only read
    packing().decode(part.device, packed, Store::assign, before.data(), nullptr);
  }
  const float* const owed = place.now ? before.data() : nullptr;
  scope.kernels().add_owed(scope.queue(), input, part_, owed, nullptr, part.count(), sent.data());
  EncodeInput damped = {sent.data()};
  damped.rounding_key = input.rounding_key;
  damped.first = input.first;
  part.codec->encode(part.device, damped, part.payload, nullptr);
  part.codec->decode(part.device, part.payload, Store::assign, sent.data(), nullptr);
  scope.kernels().keep_owed(scope.queue(), input, owed, sent.data(), part.count(), next.data());
  EncodeInput kept = {next.data()};
  kept.rounding_key = rules::derive_key(input.rounding_key, kOfMemory);
  kept.first = input.first;
  packed.payload = place.next;
  packing().encode(part.device, kept, packed, nullptr);
}

}  // namespace

std::string Loco::text() const {
  if (period_ != kPeriod) return "loco:" + shortest(beta_) + ":" + std::to_string(period_);
  return beta_ == kBeta ? "loco" : "loco:" + shortest(beta_);
}

void Loco::require_fit(const CodecText& plan, const Codec& codec) const {
  if (!codec.traits().leaves_error) plan.refuse("this codec leaves no error that could be fed back");
}

std::shared_ptr<Memory> Loco::remember(StateStore& store, std::size_t parameter) const {
  return std::make_shared<LocoMemory>(store, parameter, beta_, period_);
}

FeedbackPtr make_loco(const CodecText& text) {
  constexpr auto kExpected =
      "loco takes a share of the past of at least 0 and below 1, and after how many steps it begins anew, as in "
      "int4+loco:0.8:1024";
  constexpr auto kLongest = std::uint64_t{1} << 40;
  if (text.options.size() > 2) text.refuse(kExpected);
  const double beta = text.options.empty() ? Loco::kBeta : text.number(text.options[0], kExpected);
  if (!(beta >= 0 && beta < 1)) text.refuse(kExpected);
  if (text.options.size() < 2) return std::make_shared<Loco>(beta);
  return std::make_shared<Loco>(beta, text.whole_number(text.options[1], 1, kLongest, kExpected));
}

}  // namespace octavo
