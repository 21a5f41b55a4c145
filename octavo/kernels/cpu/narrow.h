// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <type_traits>

#include "octavo/kernels/cpu/vectors.h"

/// Converts integers to bytes, four registers at a time: what can be done with bytes takes a quarter of the
/// instructions.
namespace octavo::cpu::OCTAVO_ISA {

using SignedBytes [[gnu::vector_size(kLanes)]] = std::int8_t;
using Bytes [[gnu::vector_size(kLanes)]] = std::uint8_t;

/// Narrows integers to bytes, in an order that in_order() corrects. Integers beyond the range of a byte become its
/// least or greatest value.
template <class To>
OCTAVO_INLINE To narrowed(const Ints& from) {
  constexpr bool kSigned = std::is_same_v<To, SignedBytes>;
#if defined(__AVX512F__)
  const auto part = [&](int i) { return reinterpret_cast<__m512i>(from.of[i]); };
  const __m512i low = _mm512_packs_epi32(part(0), part(1)), high = _mm512_packs_epi32(part(2), part(3));
  return reinterpret_cast<To>(kSigned ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high));
#elif defined(__AVX2__)
  const auto part = [&](int i) { return reinterpret_cast<__m256i>(from.of[i]); };
  const __m256i low = _mm256_packs_epi32(part(0), part(1)), high = _mm256_packs_epi32(part(2), part(3));
  return reinterpret_cast<To>(kSigned ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high));
#else
  constexpr std::int32_t kLeast = kSigned ? -128 : 0, kMost = kSigned ? 127 : 255;
  std::int32_t integers[kLanes];
  std::memcpy(integers, &from, sizeof integers);
  std::uint8_t bytes[kLanes];
  for (std::uint64_t i = 0; i < kLanes; ++i) {
    const std::int32_t bounded = integers[i] < kMost ? integers[i] : kMost;
    bytes[i] = static_cast<std::uint8_t>(bounded > kLeast ? bounded : kLeast);
  }
  return std::bit_cast<To>(bytes);
#endif
}

/// Puts narrowed bytes in order. Vectors narrow within each 16 bytes of a register: the first 4 of these come from the
/// first register.
OCTAVO_INLINE Bytes in_order(Bytes bytes) {
#if defined(__AVX512F__)
  const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return reinterpret_cast<Bytes>(_mm512_maskz_permutexvar_epi32(0xFFFF, from, reinterpret_cast<__m512i>(bytes)));
#elif defined(__AVX2__)
  const __m256i from = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return reinterpret_cast<Bytes>(_mm256_permutevar8x32_epi32(reinterpret_cast<__m256i>(bytes), from));
#else
  return bytes;
#endif
}

OCTAVO_INLINE SignedBytes lesser(SignedBytes a, SignedBytes b) {
#if defined(__AVX512F__)
  return reinterpret_cast<SignedBytes>(_mm512_min_epi8(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<SignedBytes>(_mm256_min_epi8(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return a < b ? a : b;
#endif
}

OCTAVO_INLINE Bytes lesser(Bytes a, Bytes b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Bytes>(_mm512_min_epu8(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_min_epu8(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return a < b ? a : b;
#endif
}

OCTAVO_INLINE Bytes greater(Bytes a, Bytes b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Bytes>(_mm512_max_epu8(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_max_epu8(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return a > b ? a : b;
#endif
}

/// Returns `bytes`, negated modulo 256 where `sign` is negative. Where `sign` is 0, `bytes` must be 0.
OCTAVO_INLINE SignedBytes with_sign(SignedBytes bytes, SignedBytes sign) {
#if defined(__AVX512F__)
  const __mmask64 negative = _mm512_movepi8_mask(reinterpret_cast<__m512i>(sign));
  const auto from = reinterpret_cast<__m512i>(bytes);
  return reinterpret_cast<SignedBytes>(_mm512_mask_sub_epi8(from, negative, __m512i{}, from));
#elif defined(__AVX2__)
  return reinterpret_cast<SignedBytes>(
      _mm256_sign_epi8(reinterpret_cast<__m256i>(bytes), reinterpret_cast<__m256i>(sign)));
#else
  return sign < 0 ? SignedBytes(Bytes{} - Bytes(bytes)) : bytes;  // -128 has no opposite as a signed byte
#endif
}

OCTAVO_INLINE void store_bytes(Bytes vector, std::uint8_t* bytes) { std::memcpy(bytes, &vector, sizeof vector); }

}  // namespace octavo::cpu::OCTAVO_ISA
