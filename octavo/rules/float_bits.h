// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"

/// The bits of a float, and what the rules read from them.
namespace octavo::rules {

OCTAVO_RULE std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

OCTAVO_RULE float from_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline constexpr std::uint32_t kSignMask = 0x80000000U;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kQuietNaNBits = 0x7FC00000U;

/// Returns |value| as an integer. The order of these integers is the order of magnitudes, and every NaN is above
/// infinity. A maximum over these bits cannot lose a NaN, as a maximum over floats does.
OCTAVO_RULE std::uint32_t magnitude_bits(float value) { return to_bits(value) & ~kSignMask; }

OCTAVO_RULE bool is_finite(float value) { return magnitude_bits(value) < kInfinityBits; }

OCTAVO_RULE float square_root(float value) { return __builtin_sqrtf(value); }

/// Returns a * b + c, rounded once. On a processor without such an operation it takes several times as long as a
/// multiplication and an addition.
OCTAVO_RULE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

OCTAVO_RULE float chosen(bool condition, float a, float b) { return condition ? a : b; }

OCTAVO_RULE float magnitude(float value) { return from_bits(magnitude_bits(value)); }

/// Adding 1.5 * 2^23 to a value below 2^22 in magnitude rounds the value to the nearest whole number, ties to even, and
/// leaves that number in the lowest bits of the sum.
inline constexpr float kToWhole = 12582912.0F;
inline constexpr std::uint32_t kToWholeBits = 0x4B400000U;

OCTAVO_RULE std::int32_t nearest_whole(float value) {
  return static_cast<std::int32_t>(to_bits(value + kToWhole) - kToWholeBits);
}

/// Returns 1 where the sign bit is clear (so +0 -> 1, -0 -> 0), as signs are packed.
OCTAVO_RULE std::uint32_t positive_bit(float value) { return to_bits(value) >> 31U ^ 1U; }

/// Returns `value` where the bit is 1, else -value.
OCTAVO_RULE float signed_by(float value, std::uint32_t positive_bit) {
  return from_bits(to_bits(value) ^ (positive_bit ^ 1U) << 31U);
}

OCTAVO_RULE float with_sign_of(float magnitude, float sign) {
  return from_bits((to_bits(magnitude) & ~kSignMask) | (to_bits(sign) & kSignMask));
}

}  // namespace octavo::rules
