// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/simd.h"

/// Arithmetic on a register for which C++ has no operator.
namespace octavo::cpu::OCTAVO_ISA {

// Masks of all lanes change nothing. With them an intrinsic has no unused vector, of which the compiler would warn.

/// Returns the lesser values; `b` where either is a NaN.
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
OCTAVO_INLINE IntVector greater(IntVector a, IntVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVector>(
      _mm512_maskz_max_epi32(0xFFFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVector>(_mm256_max_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return a > b ? a : b;
#endif
}
OCTAVO_INLINE Words greater(Words a, Words b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_maskz_max_epu32(0xFFFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_max_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return a > b ? a : b;
#endif
}
/// Returns the greater values, compared as integers, which more units of a processor can do. `b` is above 0.
OCTAVO_INLINE FloatVector greater_positive(FloatVector a, float b) {
  return as_floats(greater(as_ints(a), as_ints(broadcast(b))));
}

/// Returns the magnitudes, but no less than `least`, which is above 0.
OCTAVO_INLINE FloatVector magnitudes_from(FloatVector values, float least) {
#if defined(__AVX512DQ__)
  constexpr int kGreaterMagnitude = 0b1011;
  const __m512 bound = reinterpret_cast<__m512>(broadcast(least));
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_range_ps(0xFFFF, reinterpret_cast<__m512>(values), bound, kGreaterMagnitude));
#else
  return greater_positive(magnitudes(values), least);
#endif
}

#if defined(__AVX512DQ__)
/// Returns the value of the greater magnitude; of opposite values the positive one, of a NaN and a number the number.
OCTAVO_INLINE FloatVector farther_from_zero(FloatVector a, FloatVector b) {
  constexpr int kGreaterMagnitudeWithSign = 0b0111;
  return reinterpret_cast<FloatVector>(_mm512_maskz_range_ps(0xFFFF, reinterpret_cast<__m512>(a),
                                                             reinterpret_cast<__m512>(b), kGreaterMagnitudeWithSign));
}
#endif

OCTAVO_INLINE FloatVector lesser(FloatVector a, float b) { return lesser(a, broadcast(b)); }

OCTAVO_INLINE IntVector load_bytes(const std::uint8_t* bytes) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVector>(
      _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVector>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
  IntVector loaded;
  for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) loaded[lane] = bytes[lane];
  return loaded;
#endif
}

OCTAVO_INLINE FloatVector square_root(FloatVector values) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(_mm512_maskz_sqrt_ps(0xFFFF, reinterpret_cast<__m512>(values)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_sqrt_ps(reinterpret_cast<__m256>(values)));
#else
  float roots[kVectorFloats];
  store_vector(values, roots);
  for (float& one : roots) one = __builtin_sqrtf(one);
  return load_vector(roots);
#endif
}

/// Returns a * b + c, rounded once.
OCTAVO_INLINE FloatVector fused(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(_mm512_maskz_fmadd_ps(0xFFFF, reinterpret_cast<__m512>(a),
                                                             reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) c[lane] = rules::fused(a[lane], b[lane], c[lane]);
  return c;
#endif
}

/// Returns the nearest whole numbers of values below 2^22 in magnitude; ties to even.
OCTAVO_INLINE IntVector nearest_wholes(FloatVector values) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVector>(_mm512_maskz_cvtps_epi32(0xFFFF, reinterpret_cast<__m512>(values)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVector>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(values)));
#else
  return as_ints(values + rules::kToWhole) - static_cast<std::int32_t>(rules::kToWholeBits);
#endif
}

}  // namespace octavo::cpu::OCTAVO_ISA
