// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/simd.h"

/// Some registers that the same is done to, operation by operation: a processor finds what it can begin next among a
/// few dozen instructions, and in one register's long chain of them each waits for the one before.
namespace octavo::cpu::OCTAVO_ISA {

using IntVector [[gnu::vector_size(kVectorFloats * sizeof(float))]] = std::int32_t;

/// As many as there are architectural registers for.
inline constexpr std::uint64_t kSeveral = kVectorFloats == 16 ? 4 : 2;

template <class Vector>
struct Several {
  Vector each[kSeveral];
};
using SeveralFloats = Several<FloatVector>;
using SeveralInts = Several<IntVector>;

/// operation(i) of every register.
template <class Operation>
OCTAVO_INLINE auto for_several(Operation operation) {
  Several<decltype(operation(std::uint64_t{}))> results;
  for (std::uint64_t i = 0; i < kSeveral; ++i) results.each[i] = operation(i);
  return results;
}

#define OCTAVO_SEVERAL(op)                                                       \
  template <class A, class B>                                                    \
  OCTAVO_INLINE auto operator op(const Several<A>& a, const Several<B>& b) {     \
    return for_several([&](std::uint64_t i) { return a.each[i] op b.each[i]; }); \
  }                                                                              \
  template <class A, class B>                                                    \
  OCTAVO_INLINE auto operator op(const Several<A>& a, B b) {                     \
    return for_several([&](std::uint64_t i) { return a.each[i] op b; });         \
  }
OCTAVO_SEVERAL(+)
OCTAVO_SEVERAL(-)
OCTAVO_SEVERAL(*)
OCTAVO_SEVERAL(&)
OCTAVO_SEVERAL(|)
OCTAVO_SEVERAL(^)
OCTAVO_SEVERAL(>>)
OCTAVO_SEVERAL(>)
OCTAVO_SEVERAL(>=)
OCTAVO_SEVERAL(==)
#undef OCTAVO_SEVERAL

OCTAVO_INLINE SeveralInts as_ints(const SeveralFloats& floats) {
  return for_several([&](std::uint64_t i) { return reinterpret_cast<IntVector>(floats.each[i]); });
}
OCTAVO_INLINE SeveralFloats as_floats(const SeveralInts& ints) {
  return for_several([&](std::uint64_t i) { return reinterpret_cast<FloatVector>(ints.each[i]); });
}
OCTAVO_INLINE SeveralFloats to_floats(const SeveralInts& ints) {
  return for_several([&](std::uint64_t i) { return __builtin_convertvector(ints.each[i], FloatVector); });
}
OCTAVO_INLINE SeveralFloats magnitudes(const SeveralFloats& floats) {
  return for_several([&](std::uint64_t i) { return magnitudes(floats.each[i]); });
}

OCTAVO_INLINE FloatVector lesser(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a < b ? a : b;
#endif
}
OCTAVO_INLINE FloatVector greater(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_max_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}
OCTAVO_INLINE SeveralFloats lesser(const SeveralFloats& a, const SeveralFloats& b) {
  return for_several([&](std::uint64_t i) { return lesser(a.each[i], b.each[i]); });
}
OCTAVO_INLINE SeveralFloats lesser(const SeveralFloats& a, float b) {
  return for_several([&](std::uint64_t i) { return lesser(a.each[i], FloatVector{} + b); });
}
OCTAVO_INLINE SeveralFloats greater(const SeveralFloats& a, float b) {
  return for_several([&](std::uint64_t i) { return greater(a.each[i], FloatVector{} + b); });
}

OCTAVO_INLINE SeveralFloats load_several(const float* values) {
  return for_several([&](std::uint64_t i) { return load_vector(values + i * kVectorFloats); });
}
OCTAVO_INLINE void store_several(const SeveralFloats& vectors, float* values) {
  for (std::uint64_t i = 0; i < kSeveral; ++i) store_vector(vectors.each[i], values + i * kVectorFloats);
}

// Masks of all lanes, which change nothing, spare the compiler the unused vector that it would warn of.

OCTAVO_INLINE SeveralInts load_bytes(const std::uint8_t* bytes) {
  return for_several([&](std::uint64_t i) {
    const std::uint8_t* from = bytes + i * kVectorFloats;
#if defined(__AVX512F__)
    return reinterpret_cast<IntVector>(
        _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return reinterpret_cast<IntVector>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    IntVector loaded;
    for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) loaded[lane] = from[lane];
    return loaded;
#endif
  });
}

/// Integers, of which those beyond the range of a signed byte become its ends, plus 128, as bytes.
OCTAVO_INLINE void store_bytes(const SeveralInts& vectors, std::uint8_t* bytes) {
  for (std::uint64_t i = 0; i < kSeveral; ++i) {
    std::uint8_t* const to = bytes + i * kVectorFloats;
#if defined(__AVX512F__)
    const __m128i packed = _mm512_maskz_cvtsepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(vectors.each[i]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_xor_si128(packed, _mm_set1_epi8(-128)));
#elif defined(__AVX2__)
    const auto words = reinterpret_cast<__m256i>(vectors.each[i]);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m128i packed = _mm_packs_epi16(halves, halves);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_xor_si128(packed, _mm_set1_epi8(-128)));
#else
    for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) {
      const std::int32_t bounded = vectors.each[i][lane] < 127 ? vectors.each[i][lane] : 127;
      to[lane] = static_cast<std::uint8_t>((bounded > -128 ? bounded : -128) + 128);
    }
#endif
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
