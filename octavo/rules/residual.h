// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/bf16.h"

namespace octavo::rules {

/// What a code leaves over is kept in bfloat16: half the memory of float32 and half its traffic, which is what a step
/// of error feedback costs. The rounding, less than 2^-7 of what is kept, is far below the error of the codes
/// themselves.
using Residual = Bf16;

/// Rounds a finite value at random: to nearest would lose for ever what is steadily less than half a unit of the
/// residual's last place. A finite step leaves finite residuals.
OCTAVO_RULE Residual to_residual(float left_over, std::uint32_t random) {
  return finite_to_bf16_at_random(left_over, random);
}

/// The same, for less, of what is known to be below 2^127 in magnitude: rounding it does not overflow.
OCTAVO_RULE Residual to_residual_of_small(float left_over, std::uint32_t random) {
  return {static_cast<std::uint16_t>((to_bits(left_over) + random) >> 16)};
}

/// What a value leaves over where `sent` was sent; nothing where that is not a number.
OCTAVO_RULE float left_over_of(float value, float sent) { return is_finite(value - sent) ? value - sent : 0.0F; }

OCTAVO_RULE float from_residual(Residual residual) { return from_bf16(residual); }

/// A residual times a decay, and what is added to it, rounded as residuals are: to nearest, a decay near 1 would change
/// nothing.
OCTAVO_RULE Residual decayed_residual(Residual residual, float decay, float rest, std::uint32_t random) {
  return to_residual(rest + decay * from_residual(residual), random);
}

}  // namespace octavo::rules
