// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/sycl/device.h"
#include "octavo/rules/block_codec.h"

/// The lanes' codes to and from the bytes of their block (rules/block_codec.h says how they lie there). `first`: the
/// number of lane 0's element in its block of `size` elements. Both are the same in all lanes, and so is `codes`; a
/// lane that is not inside the step has the code 0.
namespace octavo::sycl_code {

/// Eight lanes share a word: how far a lane's nibble is shifted in it.
inline std::uint32_t nibble_shift() { return 4 * (lane() % 8 ^ 1); }

inline void store_nibbles(std::uint32_t nibble, WholeStep, std::uint8_t* bytes) {
  std::uint32_t words[kLanes / 8];
  for (std::uint64_t word = 0; word < kLanes / 8; ++word) {
    words[word] = union_of_lanes(lane() / 8 == word ? nibble << nibble_shift() : 0);
  }
  __builtin_memcpy(bytes, words, sizeof words);
}

inline void store_nibbles(std::uint32_t nibble, LastStep step, std::uint8_t* bytes) {
  const std::uint32_t neighbour = of_next_lane(nibble);
  if (step.inside() && lane() % 2 == 0) bytes[lane() / 2] = static_cast<std::uint8_t>(nibble << 4 | neighbour);
}

inline std::uint32_t load_nibble(const std::uint8_t* bytes, WholeStep) {
  std::uint32_t words[kLanes / 8];
  __builtin_memcpy(words, bytes, sizeof words);
  std::uint32_t own = words[0];
  for (std::uint64_t word = 1; word < kLanes / 8; ++word) own = lane() / 8 == word ? words[word] : own;
  return own >> nibble_shift() & 15;
}

inline std::uint32_t load_nibble(const std::uint8_t* bytes, LastStep step) {
  if (!step.inside()) return 0;
  return lane() % 2 == 0 ? bytes[lane() / 2] >> 4 : bytes[lane() / 2] & 15;
}

template <unsigned kBits, class Step>
inline void store_codes(std::uint32_t code, Step step, std::uint64_t first, std::uint64_t size, std::uint8_t* codes) {
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    if (step.inside()) __builtin_memcpy(codes + kBits / 8 * (first + lane()), &code, kBits / 8);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    store_nibbles(code, step, codes + first / 2);
  } else {
    for (unsigned plane = 0; plane < kBits; ++plane) {
      const bool bit = (code >> (kBits - 1 - plane) & 1) != 0;
      store_ballot(bit, step, codes + plane * rules::packed_sign_bytes(size) + first / 8);
    }
  }
}

template <unsigned kBits, class Step>
inline std::uint32_t load_codes(Step step, std::uint64_t first, std::uint64_t size, const std::uint8_t* codes) {
  std::uint32_t code = 0;
  if constexpr (rules::kLayout<kBits> == rules::Layout::words) {
    if (step.inside()) __builtin_memcpy(&code, codes + kBits / 8 * (first + lane()), kBits / 8);
  } else if constexpr (rules::kLayout<kBits> == rules::Layout::nibbles) {
    code = load_nibble(codes + first / 2, step);
  } else {
    for (unsigned plane = 0; plane < kBits; ++plane) {
      code = code << 1 | load_ballot(codes + plane * rules::packed_sign_bytes(size) + first / 8, step);
    }
  }
  return code;
}

}  // namespace octavo::sycl_code
