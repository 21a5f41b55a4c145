// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/lanes/lanes.h"
#include "octavo/rules/lane_sum.h"

namespace octavo::lanes {

/// Returns rules::lane_sum, worked out by the lanes of a group; the same in all of them. An item holds every kLanes-th
/// of the rule's lanes. The halves that are added are first its own lanes, then those of its neighbours.
template <class Term>
inline float lane_sum(std::uint64_t count, Term term) {
  constexpr std::uint64_t kOwn = rules::kSumLanes / kLanes;
  float own[kOwn] = {};
  const std::uint64_t whole = count / rules::kSumLanes * rules::kSumLanes;
  for (std::uint64_t i = 0; i < whole; i += rules::kSumLanes) {
    for (std::uint64_t k = 0; k < kOwn; ++k) own[k] += term(i + k * kLanes + lane());
  }
  for (std::uint64_t k = 0; k < kOwn; ++k) {
    const std::uint64_t i = whole + k * kLanes + lane();
    if (i < count) own[k] += term(i);
  }
  for (std::uint64_t half = kOwn / 2; half > 0; half /= 2) {
    for (std::uint64_t k = 0; k < half; ++k) own[k] += own[k + half];
  }
  for (std::uint64_t half = kLanes / 2; half > 0; half /= 2) own[0] += of_later_lane(own[0], half);
  return of_first_lane(own[0]);
}

}  // namespace octavo::lanes
