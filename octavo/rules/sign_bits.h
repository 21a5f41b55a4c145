// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"

/// Sign bits: one bit per element. The bit is 1 where the element's sign bit is clear (so +0 -> 1, -0 -> 0, and a NaN
/// goes by its own sign bit). Element 8i+j is bit 7-j of byte i; the unused tail bits of the last byte are 0. The
/// order is that of numpy.packbits.
namespace octavo::rules {

OCTAVO_RULE constexpr std::uint64_t packed_sign_bytes(std::uint64_t count) { return count / 8 + (count % 8 != 0); }

/// Returns the packed bit of one element, given its bits as an unsigned word of the element's width (8, 16, 32 or 64).
template <class Word>
OCTAVO_RULE constexpr std::uint8_t sign_bit(Word word) {
  return static_cast<std::uint8_t>(~word >> (8 * sizeof(Word) - 1) & 1U);
}

/// Returns `bit` moved to the place of element `index` in its byte.
OCTAVO_RULE constexpr std::uint8_t place_sign_bit(std::uint8_t bit, std::uint64_t index) {
  return static_cast<std::uint8_t>(bit << (7 - index % 8));
}

/// Whether the bit of element `index` is 1 in its packed byte.
OCTAVO_RULE constexpr bool is_positive(std::uint8_t byte, std::uint64_t index) {
  return (byte >> (7 - index % 8) & 1U) != 0;
}

}  // namespace octavo::rules
