// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// Majority vote (signSGD with majority vote, Bernstein et al. 2018). Each rank votes +1 or -1 by the sign of a value;
/// an exact zero abstains. The outcome is +1, -1 or 0 by the sign of the sum of the votes. A tie is 0, and so is a
/// value that is zero on every rank: mapping either to +1 would push every such parameter the same way.
///
/// A vote takes two bits, both to the owner and back: the sign bit, and one that is 1 where the vote is cast. One bit
/// has no third state, and zeros that voted at random would neither cancel exactly nor leave the other ranks' votes
/// alone. The scale carries no information except a NaN.
struct MajorityVote {
  static constexpr unsigned kBits = 2;
  static constexpr bool kHasScale = true, kLeavesError = false, kKeepsMagnitude = false, kDithers = false;
  static constexpr std::uint64_t kBlock = 1U << 18;
  static constexpr std::uint32_t kGreatest = 1;
  using Statistic = LargestMagnitude;
  struct Scale {
    float sent;
  };

  OCTAVO_RULE static Scale scale(float) { return {1.0F}; }
  OCTAVO_RULE static std::uint32_t code(float value, const Scale&, auto) {
    const std::uint32_t is_cast = (0U - magnitude_bits(value)) >> 31U;
    return positive_bit(value) << 1U | is_cast;
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) {
    const float nothing = 0.0F * sent;  // where nothing is cast, a NaN scale still gives a NaN
    return (code & 1U) != 0 ? signed_by(sent, code >> 1U) : nothing;
  }
};

}  // namespace octavo::rules
