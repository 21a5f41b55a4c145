// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// Majority vote (signSGD with majority vote, Bernstein et al. 2018). Each rank votes +1 or -1 by the sign of a value;
/// an exact zero abstains. The outcome is the vote of the votes' sum: a tie, and a value that is zero on every rank, is
/// 0. Mapping either to +1 would push every such parameter the same way.
///
/// A vote takes two bits, up and down alike: the sign bits of a block (rules/sign_bits.h), then for each of its
/// elements a bit that is 1 where the vote is cast. One bit has no third state, and zeros that vote at random would
/// neither cancel exactly nor leave the other ranks' votes alone. A block's scale is 1, or NaN where any of its values
/// is not finite.
namespace octavo::rules {

OCTAVO_RULE bool casts_vote(float value) { return magnitude_bits(value) != 0; }

OCTAVO_RULE float vote(float value) { return casts_vote(value) ? with_sign_of(1.0F, value) : 0.0F; }

/// The scale of a block from the largest of its magnitude_bits.
OCTAVO_RULE float vote_scale(std::uint32_t largest) {
  return largest < kInfinityBits ? 1.0F : from_bits(kQuietNaNBits);
}

OCTAVO_RULE float vote_decoded(bool positive, bool cast, float scale) {
  const float nothing = 0.0F * scale;  // a NaN is told by what is not cast too
  return cast ? (positive ? scale : -scale) : nothing;
}

}  // namespace octavo::rules
