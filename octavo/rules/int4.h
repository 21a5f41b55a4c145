// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// Symmetric 4-bit blocks: a block is sent as scale = max|v| / 7 and one code -7..7 an element, rounded to nearest
/// even. A code is stored as code + 8 in a nibble; element 2i is the high nibble of byte i, an unused last nibble is 0.
namespace octavo::rules {

inline constexpr float kInt4Levels = 7.0F;
/// Below this the reciprocal overflows or the quotient loses bits: such a block is sent as zeros and stays residual.
inline constexpr std::uint32_t kInt4SmallestBits = 0x01000000U;  // 2^-125

OCTAVO_RULE constexpr std::uint64_t packed_int4_bytes(std::uint64_t count) { return count / 2 + count % 2; }

struct Int4Scale {
  float scale;       // what is sent; NaN where the block holds a NaN or an infinity
  float reciprocal;  // 7 / max|v|
};

OCTAVO_RULE Int4Scale int4_scale(std::uint32_t max_magnitude_bits) {
  if (max_magnitude_bits >= kInfinityBits) return {from_bits(kQuietNaNBits), 0.0F};
  if (max_magnitude_bits < kInt4SmallestBits) return {0.0F, 0.0F};
  const float max_magnitude = from_bits(max_magnitude_bits);
  return {max_magnitude / kInt4Levels, kInt4Levels / max_magnitude};
}

/// The code of a finite value, as a float: adding and taking away 1.5 * 2^23 rounds to nearest even.
OCTAVO_RULE float int4_code(float value, float reciprocal) {
  constexpr float kRound = 12582912.0F;
  return (value * reciprocal + kRound) - kRound;
}

OCTAVO_RULE float int4_decoded(float code, float scale) { return code * scale; }

}  // namespace octavo::rules
