// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/bf16.h"

namespace octavo::rules {

/// What a code leaves over is kept in bfloat16: half the memory of float32 and half its traffic, which is what a step
/// of error feedback costs. The rounding, at most 2^-8 of what is kept, is far below the error of the codes themselves.
using Residual = Bf16;

/// Rounds a finite value to the nearest, ties away from zero: one operation fewer than ties to even, and as unbiased.
/// One beyond the largest bfloat16 saturates: a finite step leaves finite residuals.
OCTAVO_RULE Residual to_residual(float left_over) {
  constexpr std::uint32_t kLargestBits = 0x7F7FFFFFU;
  const std::uint32_t rounded = magnitude_bits(left_over) + 0x8000U;
  const std::uint32_t bounded = rounded < kLargestBits ? rounded : kLargestBits;
  return {static_cast<std::uint16_t>((bounded | (to_bits(left_over) & kSignMask)) >> 16)};
}

OCTAVO_RULE float from_residual(Residual residual) { return from_bf16(residual); }

}  // namespace octavo::rules
