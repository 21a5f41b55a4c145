// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/export.h"

/// What `auto` computes: the best plan for each bucket, from the cost of each bucket by each plan. All functions depend
/// on the figures alone. Plans are numbers, in the order of how much they change the values: 0 changes them least.
namespace octavo {

/// The figures of a bucket that was exchanged alone, with nothing else under way: its waits are then the time that the
/// network takes for it.
struct BucketFigures {
  double ready_s = 0;                 // seconds after the step's first bucket was handed over
  std::uint64_t values = 0;           // elements
  std::vector<PhaseSeconds> by_plan;  // infinite where nothing was measured
};

/// A plan for each bucket.
using BucketPlans = std::vector<std::size_t>;

/// Predicts the seconds from the handing over of the first bucket to the result of the last one, in the pipeline of
/// ddp_hook.cpp: one thread works on the buckets, one link carries their messages in order, and both do so while
/// backward goes on.
OCTAVO_API double predicted_seconds(const std::vector<BucketFigures>& buckets, const BucketPlans& plans);

/// Returns the plans with the shortest predicted exchange. Among plans whose times differ by at most 1 %, a bucket gets
/// the one that changes its values least: a bucket that is hidden behind backward or another bucket gains nothing from
/// more compression.
OCTAVO_API BucketPlans best_mix(const std::vector<BucketFigures>& buckets);

/// Returns what is worth trying in whole steps, because no prediction tells how computing and communication compete:
/// each plan for all buckets, and the best mix. Those that are predicted to take more than 1.5 times as long as the
/// best are left out; plan 0, which is dense and must be beaten for certain, only at more than 3 times as long. Those
/// that change the values least come first. At least one; at most one more than there are plans.
OCTAVO_API std::vector<BucketPlans> contenders(const std::vector<BucketFigures>& buckets);

/// Returns the contender that wins. Contenders are taken in order: one that changes the values more replaces the best
/// so far where it is 3 % faster by the median of turns, and faster at all in all turns but one. Machines are noisy and
/// drift, so a difference that may be noise decides for the plan that changes less. `turns[t][c]`: seconds of contender
/// c in turn t.
OCTAVO_API std::size_t winner(const std::vector<std::vector<double>>& turns);

/// Returns the middle value; of an even number of values the upper one of the two in the middle. `values`: at least
/// one.
OCTAVO_API double median(std::vector<double> values);

}  // namespace octavo
