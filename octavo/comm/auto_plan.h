// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "octavo/comm/auto_choice.h"
#include "octavo/export.h"

namespace octavo {

/// By which plan each bucket goes in each step, under `auto`: it measures, decides by rank 0's figures, and measures
/// again now and then.
///
///   probing   each plan for 2 steps, in which every bucket is exchanged alone: what it costs by that plan
///   trying    what these figures make worth trying (auto_choice.h), in whole steps as they will be, in 5 turns
///   settled   the fastest of those; dense where nothing else is 3 % faster
///
/// Settled, rank 0 compares every 50 steps: it measures again where that has taken at most 2 % of the time that was
/// spent on exchanges since; where these take 1.5 times as long as they did, or as short, 10 %. It measures anew where
/// the buckets are others, as after DDP's first step; until these are the same in two steps nothing is compressed.
///
/// Steps and buckets are counted, on all ranks alike; what depends on a clock comes from rank 0 in messages that all
/// ranks await in the same step. So every decision counts from the same step on, everywhere. Not thread-safe.
class OCTAVO_API AutoPlan {
 public:
  /// Replaces numbers by rank 0's, on every rank.
  using Tell = std::function<void(std::vector<std::int64_t>& numbers)>;

  /// `plans`: how many there are to choose from.
  AutoPlan(std::size_t plans, Tell tell);

  /// Ends a step and begins one. `exchange_s`: what the one that ended took, from its first bucket to the last result.
  void begin_step(double exchange_s);

  struct Turn {
    std::size_t plan;
    bool is_alone;  // to be exchanged before the next bucket begins, and recorded
  };
  /// For the next bucket of the step; `parameters`: whose gradients lie in it.
  Turn next_bucket(const std::vector<std::size_t>& parameters, std::uint64_t values);
  /// What that bucket took, alone. `ready_s`: after the step's first one.
  void record(double ready_s, const PhaseSeconds& seconds);

  struct Bucket {
    std::vector<std::size_t> parameters;
    std::size_t plan;
    BucketFigures figures;  // of this rank, as in the last time that it measured
  };
  struct Tried {
    BucketPlans plans;
    double exchange_s;  // the median over turns
  };
  struct Report {
    bool is_settled;
    std::uint64_t measurements, measured_steps;  // since the beginning
    double measured_s;                           // of exchanges, in these steps
    std::vector<Bucket> buckets;                 // in the order of backward; none in the first step
    std::vector<Tried> tried;                    // empty where one was worth it alone
  };
  Report report() const;

 private:
  enum class Phase { probing, trying, settled };

  void start();
  void note(double exchange_s);
  void try_contenders();
  void settle();
  void check();
  const BucketPlans& plans_now() const;

  std::size_t plans_;
  Tell tell_;
  std::vector<std::vector<std::size_t>> seen_, layout_;  // parameters by bucket: of this step, as they have been
  Phase phase_ = Phase::probing;
  std::uint64_t at_ = 0;  // steps done in this phase
  BucketPlans probed_;    // plans of the probe
  std::vector<BucketFigures> figures_;
  std::vector<BucketPlans> contenders_;
  std::vector<std::vector<double>> turns_;  // seconds by turn and contender
  BucketPlans chosen_;
  std::vector<double> since_check_;        // seconds by step
  double usual_s_ = 0;                     // of a step's exchange; 0: not known yet
  double measured_s_ = 0, settled_s_ = 0;  // of exchanges in the last measurement, and since
  double all_measured_s_ = 0;
  std::uint64_t measurements_ = 0, measured_steps_ = 0;
};

}  // namespace octavo
