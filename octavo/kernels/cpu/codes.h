// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "octavo/kernels/cpu/simd.h"
#include "octavo/rules/block_codec.h"

/// Writes the codes of a group, which are words, to the bytes of their block and reads them back (rules/block_codec.h
/// says how codes are laid out). `first`: the number of the group's first element in its block of `size` elements. In
/// the last group of a block, the words after its `count` elements are 0.
namespace octavo::cpu::OCTAVO_ISA {

template <unsigned kBits>
using CodeWord =
    std::conditional_t<kBits <= 8, std::uint8_t, std::conditional_t<kBits <= 16, std::uint16_t, std::uint32_t>>;

template <unsigned kBits>
OCTAVO_INLINE void store_codes(const std::uint32_t* words, std::uint64_t first, std::uint64_t count, std::uint64_t size,
                               std::uint8_t* codes) {
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    CodeWord<kBits> packed[kGroup];
    for (std::uint64_t j = 0; j < kGroup; ++j) packed[j] = static_cast<CodeWord<kBits>>(words[j]);
    std::memcpy(codes + kBits / 8 * first, packed, kBits / 8 * count);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    std::uint8_t bytes[kGroup], packed[kGroup / 2];
    for (std::uint64_t j = 0; j < kGroup; ++j) bytes[j] = static_cast<std::uint8_t>(words[j]);
    std::uint16_t pairs[kGroup / 2];
    std::memcpy(pairs, bytes, sizeof pairs);
    for (std::uint64_t j = 0; j < kGroup / 2; ++j) packed[j] = static_cast<std::uint8_t>(pairs[j] << 4 | pairs[j] >> 8);
    std::memcpy(codes + first / 2, packed, rules::code_bytes<kBits>(count));
  } else {
    for (unsigned plane = 0; plane < kBits; ++plane) {
      std::uint32_t highest[kGroup];
      for (std::uint64_t j = 0; j < kGroup; ++j) highest[j] = words[j] << (32 - kBits + plane);
      const std::uint64_t packed = reverse_bits_in_bytes(sign_mask(highest));
      std::memcpy(codes + plane * rules::packed_sign_bytes(size) + first / 8, &packed, rules::packed_sign_bytes(count));
    }
  }
}

/// Calls visit(j, code) for all elements of a group. A visitor should keep what it makes of a code, not the code
/// itself: the compiler then widens codes in whole registers.
template <unsigned kBits, class Visit>
OCTAVO_INLINE void for_codes(const std::uint8_t* codes, std::uint64_t first, std::uint64_t count, std::uint64_t size,
                             Visit visit) {
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    CodeWord<kBits> packed[kGroup] = {};
    std::memcpy(packed, codes + kBits / 8 * first, kBits / 8 * count);
    for (std::uint64_t j = 0; j < kGroup; ++j) visit(j, packed[j]);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    std::uint8_t packed[kGroup / 2] = {};
    std::memcpy(packed, codes + first / 2, rules::code_bytes<kBits>(count));
    std::uint16_t pairs[kGroup / 2];
    for (std::uint64_t j = 0; j < kGroup / 2; ++j) {
      pairs[j] = static_cast<std::uint16_t>(packed[j] >> 4U | (packed[j] & 15U) << 8U);
    }
    std::uint8_t bytes[kGroup];
    std::memcpy(bytes, pairs, sizeof bytes);
    for (std::uint64_t j = 0; j < kGroup; ++j) visit(j, bytes[j]);
  } else {
    std::uint32_t planes[kBits][kGroup];
    for (unsigned plane = 0; plane < kBits; ++plane) {
      const std::uint8_t* bits = codes + plane * rules::packed_sign_bytes(size) + first / 8;
      expand_bits(load_signs(bits, count), 1U << (kBits - 1 - plane), planes[plane]);
    }
    for (std::uint64_t j = 0; j < kGroup; ++j) {
      std::uint32_t code = planes[0][j];
      for (unsigned plane = 1; plane < kBits; ++plane) code |= planes[plane][j];
      visit(j, code);
    }
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
