// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

namespace octavo::rules {

/// A bfloat16: the upper half of a float's bits.
struct Bf16 {
  std::uint16_t bits;
};

/// Converts a float to bfloat16, rounded to nearest even; a NaN stays a (quiet) NaN of the same sign.
OCTAVO_RULE Bf16 to_bf16(float value) {
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
  const std::uint32_t quiet = bits | 0x00400000U;
  return {static_cast<std::uint16_t>(((bits & ~kSignMask) > kInfinityBits ? quiet : rounded) >> 16)};
}

OCTAVO_RULE float from_bf16(Bf16 value) { return from_bits(static_cast<std::uint32_t>(value.bits) << 16); }

/// Converts a finite value to bfloat16. It is rounded away from zero with a probability equal to the fraction that
/// truncation would discard, and towards zero otherwise: unbiased, whatever is added step by step. `random`: uniform in
/// [0, 2^16) (counter_random.h). A value that bfloat16 holds exactly stays as it is; a value beyond the largest finite
/// bfloat16 becomes that.
OCTAVO_RULE Bf16 finite_to_bf16_at_random(float value, std::uint32_t random) {
  constexpr std::uint32_t kLargestBits = 0x7F7FFFFFU;
  const std::uint32_t rounded = magnitude_bits(value) + random;
  const std::uint32_t bounded = rounded < kLargestBits ? rounded : kLargestBits;
  return {static_cast<std::uint16_t>((bounded | (to_bits(value) & kSignMask)) >> 16)};
}

/// Does the same for any value: infinities and NaNs stay what they are.
OCTAVO_RULE Bf16 to_bf16_at_random(float value, std::uint32_t random) {
  return {is_finite(value) ? finite_to_bf16_at_random(value, random).bits : to_bf16(value).bits};
}

/// A float in 24 bits: the bfloat16 nearest to it, and the difference between the two in 256ths of the bfloat16's last
/// place.
struct Bf16WithTail {
  Bf16 head;
  std::int8_t tail;
};

OCTAVO_RULE Bf16WithTail to_bf16_with_tail(float value) {
  const std::uint32_t kept = (to_bits(value) + 0x7FU + (to_bits(value) >> 8 & 1U)) >> 8;
  const std::uint32_t head = (kept + 0x80U) >> 8;
  const std::uint32_t tail = kept - (head << 8);
  const bool finite = is_finite(value) && (head & 0x7F80U) != 0x7F80U;
  return {finite ? Bf16{static_cast<std::uint16_t>(head)} : to_bf16(value),
          static_cast<std::int8_t>(finite ? static_cast<std::int32_t>(tail) : 0)};
}

/// Returns the float that head and tail stand for. Somebody else may have set the head to a zero, an infinity or a NaN
/// and left the tail. The tail is therefore ignored where to_bf16_with_tail() makes none: beside an infinity or a NaN,
/// and beside a zero if it is negative. A negative tail beside a zero would make a NaN of it.
OCTAVO_RULE float from_bf16_with_tail(Bf16WithTail value) {
  const std::uint32_t head = value.head.bits, magnitude = head & 0x7FFFU;
  const std::int32_t tail = value.tail;
  const bool fits = magnitude < 0x7F80U && (magnitude != 0 || tail >= 0);
  return from_bits(((head << 8) + static_cast<std::uint32_t>(fits ? tail : 0)) << 8);
}

}  // namespace octavo::rules
