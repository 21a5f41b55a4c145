// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"

/// Random bits of an element of a tensor: a hash of a key and of the element's number. They depend neither on threads
/// nor on how the tensor is cut, and every machine and back end draws the same.
namespace octavo::rules {

/// A key for one of several purposes of `key` (a step, a parameter, a rank, ...), unrelated to the key and to those of
/// other purposes: splitmix64 (Steele, Lea and Flood 2014).
OCTAVO_RULE constexpr std::uint64_t derive_key(std::uint64_t key, std::uint64_t purpose) {
  std::uint64_t x = key + (purpose + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

/// 32 random bits: the integer hash lowbias32 (Wellons 2018) with half of the key added before each multiplication. It
/// needs 32-bit operations alone, which every instruction set has for whole vectors. Keys are to be made by derive_key.
OCTAVO_RULE constexpr std::uint32_t random_word(std::uint64_t key, std::uint32_t number) {
  std::uint32_t x = number + static_cast<std::uint32_t>(key);
  x = (x ^ x >> 16) * 0x7FEB352DU;
  x = (x ^ x >> 15) + static_cast<std::uint32_t>(key >> 32);
  x *= 0x846CA68BU;
  return x ^ x >> 16;
}

/// 16 random bits of an element. Elements 2i and 2i + 1 share word i, in its low and its high half; numbers are taken
/// modulo 2^33.
OCTAVO_RULE constexpr std::uint32_t random_bits(std::uint64_t key, std::uint64_t element) {
  return random_word(key, static_cast<std::uint32_t>(element / 2)) >> 16 * (element % 2) & 0xFFFFU;
}

}  // namespace octavo::rules
