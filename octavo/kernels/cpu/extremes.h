// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "octavo/kernels/cpu/vectors.h"
#include "octavo/rules/state_codes.h"

/// The extreme of a block of state, from which its scale is made. Call take() for all of the block, then value().
namespace octavo::cpu::OCTAVO_ISA {

/// Combines all lanes of a register by combine(a, b), in any order.
template <class Vector, class Combine>
OCTAVO_INLINE Vector over_lanes(Vector vector, Combine combine) {
  for (std::uint32_t half = kVectorFloats / 2; half > 0; half /= 2) {
    vector = combine(Vector(exchange_lanes(FloatVector(vector), half)), vector);
  }
  return vector;
}
/// Combines four registers and another one by combine(a, b), lane by lane.
template <class Vector, class Combine>
OCTAVO_INLINE Vector over_registers(const Vectors<Vector>& a, Vector b, Combine combine) {
  return combine(combine(combine(a.of[0], a.of[1]), combine(a.of[2], a.of[3])), b);
}

inline constexpr auto kGreater = [](auto a, auto b) { return greater(a, b); };
OCTAVO_INLINE Vectors<Words> as_words(const Floats& floats) {
  return each([](FloatVector x) { return Words(as_ints(x)); }, floats);
}

/// The greatest of a block of values that are at least 0 and not -0. Floats of one sign are compared as integers, which
/// any unit of a processor can do; a NaN is then greater than all numbers.
class PositiveExtreme {
 public:
  OCTAVO_INLINE void take(const Floats& values) { greatest_ = over_registers(as_words(values), greatest_, kGreater); }
  OCTAVO_INLINE bool is_finite() const { return is_all(IntVector(greatest_ < Words{} + rules::kInfinityBits)); }
  OCTAVO_INLINE float value() const { return rules::from_bits(over_lanes(greatest_, kGreater)[0]); }

 private:
  Words greatest_ = {};
};

// The value of the largest magnitude in a block of finite values; of two opposite values the positive one.
#if defined(__AVX512DQ__)
class SignedExtreme {
 public:
  OCTAVO_INLINE void take(const Floats& values) { farthest_ = over_registers(values, farthest_, farther_from_zero); }
  OCTAVO_INLINE float value() const { return over_lanes(farthest_, farther_from_zero)[0]; }

 private:
  FloatVector farthest_ = {};
};
#else
class SignedExtreme {
 public:
  /// Compares values as integers. The greatest of the values above 0 is the greatest signed integer; the least of the
  /// others is the greatest unsigned integer.
  OCTAVO_INLINE void take(const Floats& values) {
    greatest_ = over_registers(as_ints(values), greatest_, kGreater);
    least_ = over_registers(as_words(values), least_, kGreater);
  }
  OCTAVO_INLINE float value() const {
    const float negative = rules::from_bits(over_lanes(least_, kGreater)[0]);
    return rules::extreme_of(as_floats(over_lanes(greatest_, kGreater))[0], negative < 0.0F ? -negative : 0.0F);
  }

 private:
  IntVector greatest_ = {};
  Words least_ = {};
};
#endif

template <class Map>
using Extreme = std::conditional_t<Map::kSigned, SignedExtreme, PositiveExtreme>;

}  // namespace octavo::cpu::OCTAVO_ISA
