// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "octavo/comm/auto_choice.h"
#include "octavo/export.h"

namespace octavo {

/// Chooses the plan of each bucket in each step, under `auto`: it measures, decides by rank 0's figures, and measures
/// again from time to time.
///
///   probing   each plan for 2 steps, in which every bucket is exchanged alone: what it costs by that plan
///   trying    the plans that these figures make worth trying (auto_choice.h), in whole steps as they will be later, in
///             5 turns
///   settled   the fastest of those; dense where nothing else is 3 % faster
///
/// Once it has settled, rank 0 checks every 50 steps whether to measure again. It does where the last measurement took
/// at most 2 % of the time that was spent on exchanges since; where exchanges now take 1.5 times as long as they did,
/// or as short, the limit is 10 %. Where the buckets have changed, as after DDP's first step, all ranks measure anew;
/// nothing is compressed until the buckets are the same in two steps.
///
/// Steps and buckets are counted on all ranks alike. What depends on a clock comes from rank 0, in messages for which
/// all ranks wait in the same step. So every decision takes effect in the same step on all ranks. Not thread-safe.
class OCTAVO_API AutoPlan {
 public:
  /// A function that replaces the numbers by rank 0's, on every rank.
  using Broadcast = std::function<void(std::vector<std::int64_t>& numbers)>;

  /// `plans`: the number of plans to choose from.
  AutoPlan(std::size_t plans, Broadcast broadcast);

  /// Ends a step and begins one. `exchange_s`: the seconds that the step that ended took, from its first bucket to its
  /// last result.
  void begin_step(double exchange_s);

  struct Turn {
    std::size_t plan;
    bool is_alone;  // the bucket is exchanged before the next one begins, and recorded
  };
  /// Returns the turn of the step's next bucket. `parameters`: whose gradients lie in it.
  Turn next_bucket(const std::vector<std::size_t>& parameters, std::uint64_t values);
  /// Records what that bucket took when it was exchanged alone. `ready_s`: seconds after the step's first bucket.
  void record(double ready_s, const PhaseSeconds& seconds);

  struct Bucket {
    std::vector<std::size_t> parameters;
    std::size_t plan;
    BucketFigures figures;  // of this rank, from its last measurement
  };
  struct Tried {
    BucketPlans plans;
    double exchange_s;  // the median over turns
  };
  struct Report {
    bool is_settled;
    std::uint64_t measurements, measured_steps;  // since the beginning
    double measured_s;                           // of exchanges in these steps
    std::vector<Bucket> buckets;                 // in the order of backward; none in the first step
    std::vector<Tried> tried;                    // empty where only one was worth trying
  };
  Report report() const;

 private:
  enum class Phase { probing, trying, settled };

  void start();
  void note(double exchange_s);
  void try_contenders();
  void choose();
  void check();
  const BucketPlans& plans_now() const;

  std::size_t plans_;
  Broadcast broadcast_;
  std::vector<std::vector<std::size_t>> seen_, layout_;  // parameters by bucket: of this step, of the steps before
  Phase phase_ = Phase::probing;
  std::uint64_t at_ = 0;  // steps done in this phase
  BucketPlans probed_;    // the plans that are being probed
  std::vector<BucketFigures> figures_;
  std::vector<BucketPlans> contenders_;
  std::vector<std::vector<double>> turns_;  // seconds by turn and contender
  BucketPlans chosen_;
  std::vector<double> since_check_;        // seconds of each step's exchange
  double usual_s_ = 0;                     // the usual time of a step's exchange; 0: not known yet
  double measured_s_ = 0, settled_s_ = 0;  // of exchanges in the last measurement, and since then
  double all_measured_s_ = 0;
  std::uint64_t measurements_ = 0, measured_steps_ = 0;
};

}  // namespace octavo
