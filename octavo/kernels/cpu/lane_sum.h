// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/simd.h"
#include "octavo/rules/lane_sum.h"

namespace octavo::cpu::OCTAVO_ISA {

static_assert(kGroup == rules::kSumLanes);

/// Returns the sum of the elements, added pairwise in halves.
template <std::uint64_t kFloats>
OCTAVO_INLINE float add_halves(typename Register<kFloats>::Floats vector) {
  if constexpr (kFloats == 2) {
    return vector[0] + vector[1];
  } else {
    typename Register<kFloats / 2>::Floats halves[2];
    std::memcpy(halves, &vector, sizeof halves);
    return add_halves<kFloats / 2>(halves[0] + halves[1]);
  }
}

/// Returns rules::lane_sum of term(values[i]), over whole groups; the last group must be filled up with zeros.
template <class Term>
OCTAVO_INLINE float lane_sum(const float* values, std::uint64_t count, Term term) {
  constexpr std::uint64_t kVectors = kGroup / kVectorFloats;
  FloatVector lanes[kVectors] = {};
  for (std::uint64_t i = 0; i < count; i += kGroup) {
    for (std::uint64_t k = 0; k < kVectors; ++k) lanes[k] += term(load_vector(values + i + k * kVectorFloats));
  }
  for (std::uint64_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::uint64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return add_halves<kVectorFloats>(lanes[0]);
}

}  // namespace octavo::cpu::OCTAVO_ISA
