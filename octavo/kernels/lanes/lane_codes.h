// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/lanes/lanes.h"
#include "octavo/rules/block_codec.h"

/// Writes the lanes' codes to the bytes of their block and reads them back (rules/block_codec.h says how codes are laid
/// out). `first`: the number of lane 0's element in its block of `size` elements. `first`, `size` and `codes` are the
/// same in all lanes. A lane that is not inside the step has the code 0.
namespace octavo::lanes {

/// Returns how far a lane's nibble is shifted in a word, which eight lanes share.
OCTAVO_RULE std::uint32_t nibble_shift() { return 4 * (lane() % 8 ^ 1); }

template <class Step>
OCTAVO_RULE void store_own_nibbles(std::uint32_t nibble, Step step, std::uint8_t* bytes) {
  const std::uint32_t neighbour = of_next_lane(nibble);
  if (step.inside() && lane() % 2 == 0) bytes[lane() / 2] = static_cast<std::uint8_t>(nibble << 4 | neighbour);
}

OCTAVO_RULE std::uint32_t load_own_nibble(const std::uint8_t* bytes) {
  return lane() % 2 == 0 ? bytes[lane() / 2] >> 4 : bytes[lane() / 2] & 15;
}

OCTAVO_RULE void store_nibbles(std::uint32_t nibble, WholeStep step, std::uint8_t* bytes) {
  if constexpr (kLanesTakeBytes) return store_own_nibbles(nibble, step, bytes);
  std::uint32_t words[kLanes / 8];
  for (std::uint64_t word = 0; word < kLanes / 8; ++word) {
    words[word] = union_of_lanes(lane() / 8 == word ? nibble << nibble_shift() : 0);
  }
  __builtin_memcpy(bytes, words, sizeof words);
}

OCTAVO_RULE void store_nibbles(std::uint32_t nibble, LastStep step, std::uint8_t* bytes) {
  store_own_nibbles(nibble, step, bytes);
}

OCTAVO_RULE std::uint32_t load_nibble(const std::uint8_t* bytes, WholeStep) {
  if constexpr (kLanesTakeBytes) return load_own_nibble(bytes);
  std::uint32_t words[kLanes / 8];
  __builtin_memcpy(words, bytes, sizeof words);
  std::uint32_t own = words[0];
  for (std::uint64_t word = 1; word < kLanes / 8; ++word) own = lane() / 8 == word ? words[word] : own;
  return own >> nibble_shift() & 15;
}

OCTAVO_RULE std::uint32_t load_nibble(const std::uint8_t* bytes, LastStep step) {
  return step.inside() ? load_own_nibble(bytes) : 0;
}

// Planes are handled one after another, without a loop: the compiler assumes that what a loop holds differs from lane
// to lane, and uses masks for it.

/// Returns the lanes' flags, packed as sign bits are, without a ballot: two ballots are not vectorised beside a
/// residual.
OCTAVO_RULE std::uint64_t packed_union(std::uint32_t flag) {
  const std::uint32_t place = static_cast<std::uint32_t>(lane()) ^ 7;
  if constexpr (kLanes <= 32) return union_of_lanes(flag << place);
  const std::uint32_t low = union_of_lanes(lane() < 32 ? flag << (place % 32) : 0);
  return static_cast<std::uint64_t>(union_of_lanes(lane() < 32 ? 0 : flag << (place % 32))) << 32 | low;
}

template <unsigned kPlanes, class Step>
OCTAVO_RULE void store_planes(std::uint32_t code, Step step, std::uint64_t plane_bytes, std::uint8_t* bits) {
  store_packed(packed_union(code >> (kPlanes - 1) & 1), step, bits);
  if constexpr (kPlanes > 1) store_planes<kPlanes - 1>(code, step, plane_bytes, bits + plane_bytes);
}

template <unsigned kPlanes, class Step>
OCTAVO_RULE std::uint32_t load_planes(Step step, std::uint64_t plane_bytes, const std::uint8_t* bits) {
  const std::uint32_t highest = static_cast<std::uint32_t>(load_ballot(bits, step)) << (kPlanes - 1);
  if constexpr (kPlanes == 1) return highest;
  if constexpr (kPlanes > 1) return highest | load_planes<kPlanes - 1>(step, plane_bytes, bits + plane_bytes);
}

template <unsigned kBits, class Step>
OCTAVO_RULE void store_codes(std::uint32_t code, Step step, std::uint64_t first, std::uint64_t size,
                             std::uint8_t* codes) {
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    if (step.inside()) __builtin_memcpy(codes + kBits / 8 * (first + lane()), &code, kBits / 8);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    store_nibbles(code, step, codes + first / 2);
  } else {
    if constexpr (kBits == 1) return store_ballot(code != 0, step, codes + first / 8);
    store_planes<kBits>(code, step, rules::packed_sign_bytes(size), codes + first / 8);
  }
}

template <unsigned kBits, class Step>
OCTAVO_RULE std::uint32_t load_codes(Step step, std::uint64_t first, std::uint64_t size, const std::uint8_t* codes) {
  std::uint32_t code = 0;
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    if (step.inside()) __builtin_memcpy(&code, codes + kBits / 8 * (first + lane()), kBits / 8);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    code = load_nibble(codes + first / 2, step);
  } else {
    code = load_planes<kBits>(step, rules::packed_sign_bytes(size), codes + first / 8);
  }
  return code;
}

}  // namespace octavo::lanes
