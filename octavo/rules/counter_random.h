// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"

/// Random bits of an element of a tensor: a hash of a key and of the element's number. They depend neither on threads
/// nor on how the tensor is cut, and every machine and back end draws the same.
namespace octavo::rules {

/// Returns a key for one of several purposes of `key` (a step, a parameter, a rank, ...). It is unrelated to `key` and
/// to the keys of other purposes. The hash is splitmix64 (Steele, Lea and Flood 2014).
OCTAVO_RULE constexpr std::uint64_t derive_key(std::uint64_t key, std::uint64_t purpose) {
  std::uint64_t x = key + (purpose + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

/// Returns the key for a run with a seed; for seed 0 it is `key` itself.
OCTAVO_RULE constexpr std::uint64_t seeded_key(std::uint64_t key, std::uint64_t seed) {
  return seed == 0 ? key : derive_key(key, seed);
}

/// The integer hash lowbias32 (Wellons 2018).
OCTAVO_RULE constexpr std::uint32_t mix(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352DU;
  x = (x ^ x >> 15) * 0x846CA68BU;
  return x ^ x >> 16;
}

// Elements draw their bits in groups, whose numbers are taken modulo 2^32. The number of a group is mixed well, once.
// Each word of the group then takes a vector four operations, all on 32 bits, which every instruction set has.

inline constexpr std::uint64_t kRandomGroup = 64;                // elements
inline constexpr std::uint64_t kRandomWords = kRandomGroup / 2;  // words of 32 bits

OCTAVO_RULE constexpr std::uint32_t random_base(std::uint64_t key, std::uint64_t group) {
  return mix(mix(static_cast<std::uint32_t>(group + key)) + static_cast<std::uint32_t>(key >> 32));
}

/// Returns word i of a group. It is uniform, because it is one-to-one with the base, and uncorrelated with the group's
/// other words.
OCTAVO_RULE constexpr std::uint32_t random_word(std::uint32_t base, std::uint32_t i) {
  const std::uint32_t x = base + i * 0x9E3779B9U;
  return (x ^ x >> 15) * 0x846CA68BU;
}

/// Returns 16 random bits for the element at a place in its group. Element i gets the low half of word i, and element
/// kRandomWords + i its high half.
OCTAVO_RULE constexpr std::uint32_t random_bits_at(std::uint32_t base, std::uint32_t place) {
  const std::uint32_t word = random_word(base, place % kRandomWords);
  return place < kRandomWords ? word & 0xFFFFU : word >> 16;
}

/// Returns 16 random bits for an element.
OCTAVO_RULE constexpr std::uint32_t random_bits(std::uint64_t key, std::uint64_t element) {
  return random_bits_at(random_base(key, element / kRandomGroup), static_cast<std::uint32_t>(element % kRandomGroup));
}

}  // namespace octavo::rules
