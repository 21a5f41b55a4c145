// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/auto_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace octavo {

namespace {

constexpr std::uint64_t kProbes = 2;  // steps with each plan
constexpr std::uint64_t kTurns = 5;
constexpr std::uint64_t kTurnSteps = 3;  // the first is not counted: it sends what is owed, and its memory is new
constexpr std::uint64_t kCheckSteps = 50;
constexpr double kShare = 0.02, kShareOfChange = 0.1, kChange = 1.5;

constexpr double kUnknown = std::numeric_limits<double>::infinity();

void keep_least(PhaseSeconds& least, const PhaseSeconds& other) {
  for (double PhaseSeconds::* phase : {&PhaseSeconds::encode, &PhaseSeconds::wait_up, &PhaseSeconds::reduce,
                                       &PhaseSeconds::wait_down, &PhaseSeconds::decode}) {
    least.*phase = std::min(least.*phase, other.*phase);
  }
}

}  // namespace

AutoPlan::AutoPlan(std::size_t plans, Broadcast broadcast) : plans_(plans), broadcast_(std::move(broadcast)) {}

void AutoPlan::begin_step(double exchange_s) {
  const auto seen = std::exchange(seen_, {});
  if (seen.empty()) return;
  if (seen != layout_) {
    layout_ = seen;
    return start();
  }
  note(exchange_s);
  if (phase_ == Phase::probing && at_ == plans_ * kProbes) try_contenders();
  if (phase_ == Phase::trying && at_ == contenders_.size() * kTurns * kTurnSteps) choose();
  if (phase_ == Phase::settled && at_ == kCheckSteps) check();
  if (phase_ == Phase::probing) probed_.assign(layout_.size(), at_ / kProbes);
}

AutoPlan::Turn AutoPlan::next_bucket(const std::vector<std::size_t>& parameters, std::uint64_t values) {
  const std::size_t bucket = seen_.size();
  seen_.push_back(parameters);
  if (bucket >= layout_.size() || layout_[bucket] != parameters) return {0, false};
  figures_[bucket].values = values;
  return {plans_now()[bucket], phase_ == Phase::probing};
}

void AutoPlan::record(double ready_s, const PhaseSeconds& seconds) {
  const std::size_t bucket = seen_.size() - 1;
  BucketFigures& figures = figures_[bucket];
  figures.ready_s = std::min(figures.ready_s, ready_s);
  keep_least(figures.by_plan[probed_[bucket]], seconds);
}

const BucketPlans& AutoPlan::plans_now() const {
  if (phase_ == Phase::probing) return probed_;
  return phase_ == Phase::trying ? contenders_[at_ / kTurnSteps % contenders_.size()] : chosen_;
}

void AutoPlan::start() {
  constexpr PhaseSeconds kNothing = {kUnknown, kUnknown, kUnknown, kUnknown, kUnknown};
  figures_.assign(layout_.size(), {kUnknown, 0, std::vector<PhaseSeconds>(plans_, kNothing)});
  phase_ = Phase::probing;
  probed_.assign(layout_.size(), 0);
  contenders_.clear();
  turns_.clear();
  at_ = 0;
  measured_s_ = 0;
  ++measurements_;
}

/// Records what the step that ended took.
void AutoPlan::note(double exchange_s) {
  if (phase_ == Phase::trying && at_ % kTurnSteps > 0) {
    const std::uint64_t turn = at_ / kTurnSteps;
    turns_[turn / contenders_.size()][turn % contenders_.size()] += exchange_s / (kTurnSteps - 1);
  }
  if (phase_ == Phase::settled) {
    settled_s_ += exchange_s;
    since_check_.push_back(exchange_s);
  } else {
    measured_s_ += exchange_s;
    all_measured_s_ += exchange_s;
    ++measured_steps_;
  }
  ++at_;
}

void AutoPlan::try_contenders() {
  const std::vector<BucketPlans> ours = contenders(figures_);
  const std::size_t most = plans_ + 1, buckets = layout_.size();
  std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(ours.size())};
  for (const BucketPlans& plans : ours) numbers.insert(numbers.end(), plans.begin(), plans.end());
  numbers.resize(1 + most * buckets);
  broadcast_(numbers);
  for (auto next = numbers.begin() + 1; static_cast<std::int64_t>(contenders_.size()) < numbers[0];) {
    contenders_.emplace_back(next, next + static_cast<std::ptrdiff_t>(buckets));
    next += static_cast<std::ptrdiff_t>(buckets);
  }
  phase_ = Phase::trying;
  at_ = 0;
  turns_.assign(kTurns, std::vector<double>(contenders_.size()));
  if (contenders_.size() == 1) choose();
}

void AutoPlan::choose() {
  std::vector<std::int64_t> numbers = {0};
  if (contenders_.size() > 1) {
    numbers[0] = static_cast<std::int64_t>(winner(turns_));
    broadcast_(numbers);
  }
  chosen_ = contenders_[static_cast<std::size_t>(numbers[0])];
  phase_ = Phase::settled;
  at_ = 0;
  settled_s_ = usual_s_ = 0;
  since_check_.clear();
}

void AutoPlan::check() {
  const double now_s = median(std::exchange(since_check_, {}));
  if (usual_s_ == 0) usual_s_ = now_s;
  const bool has_changed = now_s > kChange * usual_s_ || usual_s_ > kChange * now_s;
  std::vector<std::int64_t> numbers = {measured_s_ <= (has_changed ? kShareOfChange : kShare) * settled_s_ ? 1 : 0};
  broadcast_(numbers);
  at_ = 0;
  if (numbers[0] != 0) start();
}

AutoPlan::Report AutoPlan::report() const {
  Report report{phase_ == Phase::settled, measurements_, measured_steps_, all_measured_s_, {}, {}};
  for (std::size_t b = 0; b < layout_.size(); ++b) {
    report.buckets.push_back({layout_[b], plans_now()[b], figures_[b]});
  }
  for (std::size_t c = 0; report.is_settled && contenders_.size() > 1 && c < contenders_.size(); ++c) {
    std::vector<double> seconds;
    for (const auto& turn : turns_) seconds.push_back(turn[c]);
    report.tried.push_back({contenders_[c], median(seconds)});
  }
  return report;
}

}  // namespace octavo
