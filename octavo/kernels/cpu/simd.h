// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "octavo/kernels/cpu/table.h"
#include "octavo/rules/float_bits.h"
#include "octavo/rules/sign_bits.h"

/// What a loop cannot tell the compiler, such as moving sign bits between vectors and masks. A group is 64 elements;
/// its packed signs are 8 bytes, held in a little-endian 64-bit word.
namespace octavo::cpu::OCTAVO_ISA {

inline constexpr std::uint64_t kGroup = 64;
inline constexpr std::uint64_t kCacheLineBytes = 64;

#define OCTAVO_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512F__)
inline constexpr std::uint64_t kVectorFloats = 16;
#elif defined(__AVX2__)
inline constexpr std::uint64_t kVectorFloats = 8;
#else
inline constexpr std::uint64_t kVectorFloats = 4;
#endif
template <std::uint64_t kFloats>
struct Register {
  using Floats [[gnu::vector_size(kFloats * sizeof(float))]] = float;
  using Words [[gnu::vector_size(kFloats * sizeof(float))]] = std::uint32_t;
  using Ints [[gnu::vector_size(kFloats * sizeof(float))]] = std::int32_t;
};
/// Floats in a register. The compiler keeps an array of these in registers from one turn of a loop to the next; it does
/// not do so with an array of floats.
using FloatVector = Register<kVectorFloats>::Floats;

using IntVector = Register<kVectorFloats>::Ints;
using Words = Register<kVectorFloats>::Words;

OCTAVO_INLINE IntVector as_ints(FloatVector floats) { return reinterpret_cast<IntVector>(floats); }
OCTAVO_INLINE FloatVector as_floats(IntVector ints) { return reinterpret_cast<FloatVector>(ints); }
OCTAVO_INLINE FloatVector to_floats(IntVector ints) { return __builtin_convertvector(ints, FloatVector); }

/// Returns a vector with the value in all lanes. (Adding zeros instead would be a true addition, because it makes 0 of
/// -0.)
OCTAVO_INLINE FloatVector broadcast(float value) { return value - FloatVector{}; }

OCTAVO_INLINE FloatVector load_vector(const float* values) {
  FloatVector vector;
  std::memcpy(&vector, values, sizeof vector);
  return vector;
}

OCTAVO_INLINE void store_vector(FloatVector vector, float* values) { std::memcpy(values, &vector, sizeof vector); }

OCTAVO_INLINE FloatVector magnitudes(FloatVector values) {
  return reinterpret_cast<FloatVector>(reinterpret_cast<Words>(values) & ~rules::kSignMask);
}

// Masks of all lanes change nothing. With them an intrinsic has no unused vector, of which the compiler would warn.

/// Exchanges lanes: lane l of the result is lane l ^ x of the vector.
OCTAVO_INLINE FloatVector exchange_lanes(FloatVector vector, std::uint32_t x) {
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i from = _mm512_xor_si512(lanes, _mm512_set1_epi32(static_cast<int>(x)));
  return reinterpret_cast<FloatVector>(_mm512_maskz_permutexvar_ps(0xFFFF, from, reinterpret_cast<__m512>(vector)));
#elif defined(__AVX2__)
  const __m256i from =
      _mm256_xor_si256(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(x)));
  return reinterpret_cast<FloatVector>(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(vector), from));
#else
  FloatVector exchanged = {};
  for (std::uint32_t lane = 0; lane < kVectorFloats; ++lane) exchanged[lane] = vector[lane ^ x];
  return exchanged;
#endif
}

/// Negates the lanes whose bit of the mask is 1; lane 0 has the lowest bit.
OCTAVO_INLINE FloatVector negate_lanes(FloatVector vector, std::uint64_t mask) {
  Words shifts;
  for (std::uint32_t lane = 0; lane < kVectorFloats; ++lane) shifts[lane] = 31 - lane;
  const Words signs = (Words{} + static_cast<std::uint32_t>(mask)) << shifts & rules::kSignMask;
  return reinterpret_cast<FloatVector>(reinterpret_cast<Words>(vector) ^ signs);
}

/// Reverses the bits of each byte: masks count elements from the lowest bit, packed signs from the highest.
OCTAVO_INLINE std::uint64_t reverse_bits_in_bytes(std::uint64_t x) {
  x = (x >> 4 & 0x0F0F0F0F0F0F0F0FU) | (x & 0x0F0F0F0F0F0F0F0FU) << 4;
  x = (x >> 2 & 0x3333333333333333U) | (x & 0x3333333333333333U) << 2;
  return (x >> 1 & 0x5555555555555555U) | (x & 0x5555555555555555U) << 1;
}

/// Returns a mask: bit i is the sign bit of words[i], for 64 words of 1, 2, 4 or 8 bytes at any alignment.
template <class Word>
OCTAVO_INLINE std::uint64_t sign_mask(const Word* words) {
  const auto* bytes = reinterpret_cast<const char*>(words);
  std::uint64_t mask = 0;
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  for (unsigned k = 0; k < sizeof(Word); ++k) {
    const __m512i v = _mm512_loadu_si512(bytes + 64 * k);
    if constexpr (sizeof(Word) == 1) mask |= _mm512_movepi8_mask(v);
    if constexpr (sizeof(Word) == 2) mask |= std::uint64_t{_mm512_movepi16_mask(v)} << (32 * k);
    if constexpr (sizeof(Word) == 4) mask |= std::uint64_t{_mm512_movepi32_mask(v)} << (16 * k);
    if constexpr (sizeof(Word) == 8) mask |= std::uint64_t{_mm512_movepi64_mask(v)} << (8 * k);
  }
#elif defined(__AVX2__)
  for (unsigned k = 0; k < 2 * sizeof(Word); ++k) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32 * k));
    std::uint64_t part;
    if constexpr (sizeof(Word) == 8) part = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(v)));
    if constexpr (sizeof(Word) == 4) part = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
    if constexpr (sizeof(Word) == 2) {  // saturating 16 -> 8 bits keeps the sign
      const __m128i narrow = _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
      part = static_cast<unsigned>(_mm_movemask_epi8(narrow));
    }
    if constexpr (sizeof(Word) == 1) part = static_cast<unsigned>(_mm256_movemask_epi8(v));
    mask |= part << (32 / sizeof(Word) * k);
  }
#else
  for (unsigned i = 0; i < kGroup; ++i) {
    Word word;
    std::memcpy(&word, bytes + i * sizeof(Word), sizeof(Word));
    mask |= static_cast<std::uint64_t>(word >> (8 * sizeof(Word) - 1) & 1U) << i;
  }
#endif
  return mask;
}

/// Returns the packed signs of a group (rules/sign_bits.h).
template <class Word>
OCTAVO_INLINE std::uint64_t packed_signs(const Word* words) {
  return reverse_bits_in_bytes(~sign_mask(words));
}

/// out[i] = the bit of element i ? when_set : when_clear, for a group.
OCTAVO_INLINE void expand_signs(std::uint64_t packed, float when_set, float when_clear, float* out) {
#if defined(__AVX512F__)
  const std::uint64_t mask = reverse_bits_in_bytes(packed);
  const __m512 set = _mm512_set1_ps(when_set), clear = _mm512_set1_ps(when_clear);
  for (unsigned k = 0; k < 4; ++k) {
    _mm512_storeu_ps(out + 16 * k, _mm512_mask_blend_ps(static_cast<__mmask16>(mask >> (16 * k)), clear, set));
  }
#elif defined(__AVX2__)
  const __m256 set = _mm256_set1_ps(when_set), clear = _mm256_set1_ps(when_clear);
  const __m256i places = _mm256_setr_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  for (unsigned k = 0; k < 8; ++k) {
    const __m256i byte = _mm256_set1_epi32(static_cast<int>(packed >> (8 * k) & 255U));
    const __m256i chosen = _mm256_cmpeq_epi32(_mm256_and_si256(byte, places), places);
    _mm256_storeu_ps(out + 8 * k, _mm256_blendv_ps(clear, set, _mm256_castsi256_ps(chosen)));
  }
#else
  for (unsigned i = 0; i < kGroup; ++i) {
    out[i] = packed >> (i / 8 * 8 + 7 - i % 8) & 1U ? when_set : when_clear;
  }
#endif
}

/// out[i] = the bit of element i ? `word` : 0, for a group.
OCTAVO_INLINE void expand_bits(std::uint64_t packed, std::uint32_t word, std::uint32_t* out) {
  float words[kGroup];
  expand_signs(packed, rules::from_bits(word), 0.0F, words);
  std::memcpy(out, words, sizeof words);
}

/// out[i] = the bit of element i ? `byte` : 0, for a group.
OCTAVO_INLINE void expand_bits(std::uint64_t packed, std::uint8_t byte, std::uint8_t* out) {
#if defined(__AVX512BW__)
  const __m512i bytes = _mm512_set1_epi8(static_cast<char>(byte));
  _mm512_storeu_si512(out, _mm512_maskz_mov_epi8(reverse_bits_in_bytes(packed), bytes));
#elif defined(__AVX2__)
  const __m256i places = _mm256_set1_epi64x(0x0102040810204080);
  const __m256i in_lanes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  for (unsigned k = 0; k < 2; ++k) {
    const __m256i word = _mm256_set1_epi32(static_cast<int>(packed >> (32 * k)));
    const __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(word, in_lanes), places);
    const __m256i set = _mm256_cmpeq_epi8(chosen, places);
    const __m256i bytes = _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(byte)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * k), bytes);
  }
#else
  constexpr std::uint64_t kEach = 0x0101010101010101, kPlaces = 0x0102040810204080;
  for (unsigned i = 0; i < kGroup / 8; ++i) {  // eight bits to eight bytes that are 1 or 0
    const std::uint64_t chosen = (packed >> (8 * i) & 255U) * kEach & kPlaces;
    const std::uint64_t bytes = ((chosen + 0x7F * kEach) >> 7 & kEach) * byte;
    std::memcpy(out + 8 * i, &bytes, sizeof bytes);
  }
#endif
}

/// Prefetches the group that lies kPrefetchBytes ahead. The hardware's own prefetch stops at the end of a page.
template <class Word>
OCTAVO_INLINE void prefetch_ahead(const Word* group) {
  constexpr std::uint64_t kPrefetchBytes = 2048;
  const auto* ahead = reinterpret_cast<const char*>(group) + kPrefetchBytes;
  for (std::uint64_t i = 0; i < kGroup * sizeof(Word); i += kCacheLineBytes) __builtin_prefetch(ahead + i);
}

/// The number of elements from which on an output bypasses the caches: 2 MiB, about what L2 holds.
inline constexpr std::uint64_t kStreamCount = 1U << 19;

/// Copies kBytes, a multiple of a vector's bytes. The copy bypasses the caches where `out` is aligned to a vector.
template <unsigned kBytes>
OCTAVO_INLINE void stream_bytes(const void* from, void* out) {
#if defined(__AVX512F__)
  using Vector = __m512i;
  const auto stream = [](Vector* to, const void* vector) { _mm512_stream_si512(to, _mm512_loadu_si512(vector)); };
#elif defined(__AVX2__)
  using Vector = __m256i;
  const auto stream = [](Vector* to, const void* vector) {
    _mm256_stream_si256(to, _mm256_loadu_si256(static_cast<const Vector*>(vector)));
  };
#endif
#if defined(__AVX2__)
  static_assert(kBytes % sizeof(Vector) == 0);
  if (reinterpret_cast<std::uintptr_t>(out) % sizeof(Vector) == 0) {
    for (unsigned k = 0; k < kBytes / sizeof(Vector); ++k) {
      stream(static_cast<Vector*>(out) + k, static_cast<const char*>(from) + k * sizeof(Vector));
    }
    return;
  }
#endif
  std::memcpy(out, from, kBytes);
}

/// Ends a run of stream_bytes: makes the writes visible to other threads.
OCTAVO_INLINE void end_stream() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

/// Writes the packed signs of the first `count` < 64 elements of a group, byte by byte; tail bits are 0.
template <class Word>
OCTAVO_INLINE void pack_tail(const Word* words, std::uint64_t count, std::uint8_t* bits) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, reinterpret_cast<const char*>(words) + i * sizeof(Word), sizeof(Word));
    const std::uint8_t bit = rules::place_sign_bit(rules::sign_bit(word), i);
    bits[i / 8] = i % 8 == 0 ? bit : bits[i / 8] | bit;
  }
}

/// Packs the signs of up to a group.
template <class Word>
OCTAVO_INLINE void pack_signs(const Word* words, std::uint64_t count, std::uint8_t* bits) {
  if (count < kGroup) return pack_tail(words, count, bits);
  const std::uint64_t packed = packed_signs(words);
  std::memcpy(bits, &packed, sizeof packed);
}

OCTAVO_INLINE void pack_signs(const float* values, std::uint64_t count, std::uint8_t* bits) {
  pack_signs(reinterpret_cast<const std::uint32_t*>(values), count, bits);
}

/// Returns the packed signs of up to a group; the rest of the bits are 0.
OCTAVO_INLINE std::uint64_t load_signs(const std::uint8_t* bytes, std::uint64_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, rules::packed_sign_bytes(count));
  return word;
}

}  // namespace octavo::cpu::OCTAVO_ISA
