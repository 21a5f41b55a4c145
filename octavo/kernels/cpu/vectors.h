// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/vector_math.h"

/// Four registers as one value, so that a rule written for a float can be worked out for all of their elements. Each
/// operation is done on all four registers before the next operation: while one register waits for a result, there are
/// three others to work on.
namespace octavo::cpu::OCTAVO_ISA {

template <class Vector>
struct Vectors {
  Vector of[4];
};
using Floats = Vectors<FloatVector>;
using Ints = Vectors<IntVector>;

/// The number of elements in four registers.
inline constexpr std::uint64_t kLanes = 4 * kVectorFloats;

/// Returns operation(register of a, register of b, ...) for each of the four registers.
template <class Operation, class... Vector>
OCTAVO_INLINE auto each(Operation operation, const Vectors<Vector>&... a) {
  return Vectors<decltype(operation(a.of[0]...))>{
      {operation(a.of[0]...), operation(a.of[1]...), operation(a.of[2]...), operation(a.of[3]...)}};
}

#define OCTAVO_VECTORS_OPERATOR(sign)                                                    \
  template <class Vector>                                                                \
  OCTAVO_INLINE auto operator sign(const Vectors<Vector>& a, const Vectors<Vector>& b) { \
    return each([](Vector x, Vector y) { return Vector(x sign y); }, a, b);              \
  }                                                                                      \
  template <class Vector, class Scalar>                                                  \
  OCTAVO_INLINE auto operator sign(const Vectors<Vector>& a, Scalar b) {                 \
    return each([=](Vector x) { return Vector(x sign b); }, a);                          \
  }
OCTAVO_VECTORS_OPERATOR(+)
OCTAVO_VECTORS_OPERATOR(-)
OCTAVO_VECTORS_OPERATOR(*)
OCTAVO_VECTORS_OPERATOR(/)
OCTAVO_VECTORS_OPERATOR(&)
OCTAVO_VECTORS_OPERATOR(|)
OCTAVO_VECTORS_OPERATOR(^)
OCTAVO_VECTORS_OPERATOR(>>)
#undef OCTAVO_VECTORS_OPERATOR
template <class Vector>
OCTAVO_INLINE auto operator*(float a, const Vectors<Vector>& b) {
  return b * a;
}

OCTAVO_INLINE Ints as_ints(const Floats& floats) {
  return each([](FloatVector x) { return as_ints(x); }, floats);
}
OCTAVO_INLINE Floats as_floats(const Ints& ints) {
  return each([](IntVector x) { return as_floats(x); }, ints);
}

OCTAVO_INLINE Ints nearest_wholes(const Floats& floats) {
  return each([](FloatVector x) { return nearest_wholes(x); }, floats);
}

OCTAVO_INLINE Floats load_floats(const float* values) {
  return {{load_vector(values), load_vector(values + kVectorFloats), load_vector(values + 2 * kVectorFloats),
           load_vector(values + 3 * kVectorFloats)}};
}
OCTAVO_INLINE void store_floats(const Floats& floats, float* values) {
  for (std::uint64_t k = 0; k < 4; ++k) store_vector(floats.of[k], values + k * kVectorFloats);
}
/// Loads bytes, each as an integer.
OCTAVO_INLINE Ints load_ints(const std::uint8_t* bytes) {
  return {{load_bytes(bytes), load_bytes(bytes + kVectorFloats), load_bytes(bytes + 2 * kVectorFloats),
           load_bytes(bytes + 3 * kVectorFloats)}};
}

// The functions that a rule calls on a float.

OCTAVO_INLINE Ints is_finite(const Floats& values) {
  constexpr auto kInfinity = static_cast<std::int32_t>(rules::kInfinityBits);
  return each([](FloatVector x) { return IntVector(as_ints(magnitudes(x)) < kInfinity); }, values);
}
OCTAVO_INLINE Floats square_root(const Floats& values) {
  return each([](FloatVector x) { return square_root(x); }, values);
}
OCTAVO_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return each([](FloatVector x, FloatVector y, FloatVector z) { return fused(x, y, z); }, a, b, c);
}
OCTAVO_INLINE Floats fused(float a, const Floats& b, const Floats& c) {
  return each([=](FloatVector y, FloatVector z) { return fused(broadcast(a), y, z); }, b, c);
}
OCTAVO_INLINE Floats fused(float a, const Floats& b, float c) {
  return each([=](FloatVector y) { return fused(broadcast(a), y, broadcast(c)); }, b);
}
OCTAVO_INLINE Floats chosen(const Ints& condition, const Floats& a, const Floats& b) {
  return each([](IntVector of, FloatVector x, FloatVector y) { return FloatVector(of ? x : y); }, condition, a, b);
}

OCTAVO_INLINE Floats sign_of(const Floats& values) {
  return each([](FloatVector x) { return FloatVector(x > 0.0F   ? broadcast(1.0F)
                                                     : x < 0.0F ? broadcast(-1.0F)
                                                                : x); },
              values);
}

/// Returns in which lanes a condition holds in each of the four registers.
OCTAVO_INLINE IntVector in_all(const Ints& conditions) {
  return conditions.of[0] & conditions.of[1] & conditions.of[2] & conditions.of[3];
}
OCTAVO_INLINE bool is_all(IntVector condition) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(condition)) == 0xFFFF;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(condition)) == -1;
#else
  std::int32_t all = -1;
  for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) all &= condition[lane];
  return all != 0;
#endif
}

}  // namespace octavo::cpu::OCTAVO_ISA
