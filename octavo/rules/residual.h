// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/bf16.h"

namespace octavo::rules {

/// The residual: what a code leaves over, kept in bfloat16. This halves both the memory of float32 and its traffic, and
/// the traffic is the cost of a step of error feedback. The rounding, less than 2^-7 of what is kept, is far below the
/// error of the codes themselves.
using Residual = Bf16;

/// Rounds a finite value at random. Rounding to nearest would lose for ever what is steadily less than half a unit of
/// the residual's last place. A finite step leaves finite residuals.
OCTAVO_RULE Residual to_residual(float left_over, std::uint32_t random) {
  return finite_to_bf16_at_random(left_over, random);
}

/// Does the same at a lower cost for a value that is known to be below 2^127 in magnitude: rounding it does not
/// overflow.
OCTAVO_RULE Residual to_residual_of_small(float left_over, std::uint32_t random) {
  return {static_cast<std::uint16_t>((to_bits(left_over) + random) >> 16)};
}

/// Returns what is left over of a value where `sent` was sent; 0 where the difference is not finite.
OCTAVO_RULE float left_over_of(float value, float sent) { return is_finite(value - sent) ? value - sent : 0.0F; }

OCTAVO_RULE float from_residual(Residual residual) { return from_bf16(residual); }

/// Returns rest + decay * residual, rounded at random as residuals are. With rounding to nearest, a decay near 1 would
/// change nothing.
OCTAVO_RULE Residual decayed_residual(Residual residual, float decay, float rest, std::uint32_t random) {
  return to_residual(rest + decay * from_residual(residual), random);
}

}  // namespace octavo::rules
