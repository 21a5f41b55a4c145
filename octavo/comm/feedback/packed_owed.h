// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/feedback.h"

namespace octavo {

// What a rank owes in 8 bits (state/packed.h): to the averages of what it sent to owners, and of the sums that it owns;
// where own values are encoded too (Contribution::codes_own), also of its contributions to these.
inline constexpr Role kPackedOwed = {
    .name = "packed_owed", .extent = Extent::sent, .dtype = at::kByte, .is_owed = true};
inline constexpr Role kPackedOwedToAll = {
    .name = "packed_owed_to_all", .extent = Extent::owned, .dtype = at::kByte, .is_owed = true};
inline constexpr Role kPackedOwedToOwn = {
    .name = "packed_owed_to_own", .extent = Extent::own_contribution, .dtype = at::kByte, .is_owed = true};

/// How what is owed is paid back.
struct Repayment {
  static constexpr std::uint64_t kNever = 0;
  float share = 1.0F;             // the share of what is owed that a step adds
  float decay = 1.0F;             // what a rank owes to owners is multiplied by it in each step
  std::uint64_t period = kNever;  // the number of steps after which nothing is owed any more
};

/// The memory of `+ef:8bit` and `+loco`. With o what is owed and d a rank's contribution, the rank sends a code of
/// d + share*(decay*o) and then owes d + decay*o less what that decodes to. It is kept in 8 bits; all arithmetic is
/// float32. For a way whose codec leaves no error nothing is kept.
class PackedOwed final : public FeedbackMemory {
 public:
  PackedOwed(StateStore& store, std::size_t parameter, Repayment repayment);

  void begin(c10::Device device, const Contribution& tensor, float power) override;
  void encode(const SentPart& part, const EncodeInput& input) override;
  std::uint64_t granule() const override;

 private:
  struct Place {
    const std::uint8_t* now = nullptr;  // null: nothing is owed
    std::uint8_t* next = nullptr;       // null: nothing is kept
  };
  Place open(Versioned& owed, Extent extent, const Contribution& tensor, const Codec& codec, c10::Device device) const;
  /// Returns the place of the payload of a part's range.
  Place of(const SentPart& part) const;
  /// Unpacks what is owed of a part to `memory` and returns it; null: nothing is owed.
  const float* unpacked(const SentPart& part, const Place& place, float* memory) const;

  Versioned &worker_, &owner_, &own_;
  int rank_, world_size_;
  Repayment repayment_;
  float owed_share_ = 1.0F;
  std::uint64_t count_ = 0;
  Ownership ownership_;
  Range own_range_;
  Place up_, down_, of_own_;
};

}  // namespace octavo
