// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"

/// A sum of floats in a fixed order that is fast on vectors. 64 lanes take the terms in turn (term i goes to lane i %
/// 64). The lanes are then added pairwise in halves. Every back end and instruction set gets the same bits.
namespace octavo::rules {

inline constexpr std::uint64_t kSumLanes = 64;

/// Returns the sum of term(0) to term(count - 1).
template <class Term>
OCTAVO_RULE float lane_sum(std::uint64_t count, Term term) {
  float lanes[kSumLanes] = {};
  for (std::uint64_t i = 0; i < count; ++i) lanes[i % kSumLanes] += term(i);
  for (std::uint64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::uint64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace octavo::rules
