// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

namespace octavo::rules {

/// A bfloat16: the upper half of a float's bits.
struct Bf16 {
  std::uint16_t bits;
};

/// float -> bfloat16, rounded to nearest even; a NaN stays a (quiet) NaN of the same sign.
OCTAVO_RULE Bf16 to_bf16(float value) {
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
  const std::uint32_t quiet = bits | 0x00400000U;
  return {static_cast<std::uint16_t>(((bits & ~kSignMask) > kInfinityBits ? quiet : rounded) >> 16)};
}

OCTAVO_RULE float from_bf16(Bf16 value) { return from_bits(static_cast<std::uint32_t>(value.bits) << 16); }

}  // namespace octavo::rules
