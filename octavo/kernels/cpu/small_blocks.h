// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "octavo/kernels/cpu/codes.h"

/// Blocks of 8, 16, 32 or 64 elements: a group holds one or several. The compiler knows their size, so that the loops
/// over each block are whole vectors.
namespace octavo::cpu::OCTAVO_ISA {

/// If groups consist of such blocks, calls body(size) with the size of `block` elements as a constant. Returns whether
/// they do.
template <class Body>
OCTAVO_INLINE bool with_small_block(std::uint64_t block, Body body) {
  switch (block) {
    case 8: return body(std::integral_constant<std::uint64_t, 8>()), true;
    case 16: return body(std::integral_constant<std::uint64_t, 16>()), true;
    case 32: return body(std::integral_constant<std::uint64_t, 32>()), true;
    case 64: return body(std::integral_constant<std::uint64_t, 64>()), true;
    default: return false;
  }
}

template <std::uint64_t kBlock>
OCTAVO_INLINE std::uint32_t small_summary(rules::LargestMagnitude, const float* values) {
  std::uint32_t largest = 0;
  for (std::uint64_t j = 0; j < kBlock; ++j) {
    const std::uint32_t bits = rules::magnitude_bits(values[j]);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// Returns rules::lane_sum, where the lanes after the block are zeros.
template <std::uint64_t kBlock>
OCTAVO_INLINE float small_summary(rules::MeanMagnitude, const float* values) {
  float lanes[kBlock];
  for (std::uint64_t j = 0; j < kBlock; ++j) lanes[j] = rules::magnitude(values[j]);
  for (std::uint64_t half = kBlock / 2; half > 0; half /= 2) {
    for (std::uint64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

/// Writes the codes of a group's blocks. Planes are laid out block by block: plane p of block s is at (s * kBits + p) *
/// kBlock / 8.
template <unsigned kBits, std::uint64_t kBlock>
OCTAVO_INLINE void store_small_codes(const std::uint32_t* words, std::uint8_t* codes) {
  if constexpr (rules::kLayout<kBits> != rules::Layout::planes)
    return store_codes<kBits>(words, 0, kGroup, kGroup, codes);
  constexpr std::uint64_t kBytes = kBlock / 8;
  std::uint8_t packed[kBits * kGroup / 8];
  store_codes<kBits>(words, 0, kGroup, kGroup, packed);
  for (std::uint64_t s = 0; s < kGroup / kBlock; ++s) {
    for (unsigned plane = 0; plane < kBits; ++plane) {
      std::memcpy(codes + (s * kBits + plane) * kBytes, packed + plane * kGroup / 8 + s * kBytes, kBytes);
    }
  }
}

/// Returns the codes of a group, laid out as those of one block. Where they are not laid out so yet, they are copied so
/// into `packed`.
template <unsigned kBits, std::uint64_t kBlock>
OCTAVO_INLINE const std::uint8_t* load_small_codes(const std::uint8_t* codes, std::uint8_t* packed) {
  if constexpr (rules::kLayout<kBits> != rules::Layout::planes) return codes;
  constexpr std::uint64_t kBytes = kBlock / 8;
  for (std::uint64_t s = 0; s < kGroup / kBlock; ++s) {
    for (unsigned plane = 0; plane < kBits; ++plane) {
      std::memcpy(packed + plane * kGroup / 8 + s * kBytes, codes + (s * kBits + plane) * kBytes, kBytes);
    }
  }
  return packed;
}

}  // namespace octavo::cpu::OCTAVO_ISA
