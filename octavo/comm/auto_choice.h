// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/export.h"

/// What `auto` computes: from the cost of each bucket by each plan, by which plan each bucket had better go. Pure
/// functions of the figures. Plans are numbers, in the order of how much they change the values: 0 changes them least.
namespace octavo {

/// A bucket that was exchanged alone, nothing else being under way: its waits are then what the network takes for it.
struct BucketFigures {
  double ready_s = 0;                 // after the step's first bucket was handed over
  std::uint64_t values = 0;           // elements
  std::vector<PhaseSeconds> by_plan;  // infinite where nothing was measured
};

/// A plan for each bucket.
using BucketPlans = std::vector<std::size_t>;

/// Seconds from the first bucket's being handed over to the last one's result, in the pipeline of ddp_hook.cpp: one
/// thread works on the buckets, one link carries their messages in order, and both do so while backward goes on.
OCTAVO_API double predicted_seconds(const std::vector<BucketFigures>& buckets, const BucketPlans& plans);

/// The plans by which the exchange is predicted to be shortest; of plans that take as long to 1 %, a bucket gets that
/// which changes its values least: where it travels behind backward or another bucket, nothing is gained by more.
OCTAVO_API BucketPlans best_mix(const std::vector<BucketFigures>& buckets);

/// What is worth trying in whole steps, where computing and communication compete as no prediction tells: each plan for
/// all buckets, and the best mix, without those predicted to take 1.5 times as long as the best; 0, which is dense and
/// must be beaten for certain, without it only at 3 times. Those that change the values least come first. At least one;
/// at most one more than there are plans.
OCTAVO_API std::vector<BucketPlans> contenders(const std::vector<BucketFigures>& buckets);

/// Takes the contenders in order: one that changes the values more takes the place of the best so far where it is 3 %
/// faster by the median of turns, and faster at all in all turns but one: machines are noisy and drift, and what is no
/// more than noise decides for the plan that changes less. `turns[t][c]`: seconds of contender c in turn t.
OCTAVO_API std::size_t winner(const std::vector<std::vector<double>>& turns);

/// The middle one; of an even number the upper of the two. `values`: at least one.
OCTAVO_API double median(std::vector<double> values);

}  // namespace octavo
