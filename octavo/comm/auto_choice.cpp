// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/auto_choice.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <utility>

namespace octavo {

namespace {

constexpr double kSameTime = 1.01, kWorthTrying = 1.5, kDenseWorthTrying = 3, kWorthIt = 1.03;

/// The thread and the link that exchange buckets, as DdpHook uses them.
class Pipeline {
 public:
  void begin(double ready_s, const PhaseSeconds& cost) {
    thread_ = std::max(thread_, ready_s) + cost.encode;
    under_way_.push_back({&cost, send(cost.wait_up)});
    for (std::size_t i = under_way_.size() - 1; i-- > 0;) advance(under_way_[i]);
    if (under_way_.size() > kBucketsUnderWay) finish_oldest();  // a choice of auto has at most as many transfers
  }

  double drain() {
    for (UnderWay& bucket : under_way_) advance(bucket);
    while (!under_way_.empty()) finish_oldest();
    return thread_;
  }

 private:
  struct UnderWay {
    const PhaseSeconds* cost;
    double arrives;
    bool is_summed = false;
  };

  /// Returns when a message arrives that is sent now. What takes no time is not sent: a dense bucket has one transfer.
  double send(double seconds) {
    if (seconds == 0) return thread_;
    link_ = std::max(link_, thread_) + seconds;
    return link_;
  }
  void advance(UnderWay& bucket) {
    if (bucket.is_summed) return;
    thread_ = std::max(thread_, bucket.arrives) + bucket.cost->reduce;
    bucket.arrives = send(bucket.cost->wait_down);
    bucket.is_summed = true;
  }
  void finish_oldest() {
    UnderWay& bucket = under_way_.front();
    advance(bucket);
    thread_ = std::max(thread_, bucket.arrives) + bucket.cost->decode;
    under_way_.pop_front();
  }

  double thread_ = 0, link_ = 0;  // until when they are busy, in seconds
  std::deque<UnderWay> under_way_;
};

std::size_t plan_count(const std::vector<BucketFigures>& buckets) {
  return buckets.empty() ? 0 : buckets[0].by_plan.size();
}

BucketPlans same_for_all(const std::vector<BucketFigures>& buckets, std::size_t plan) {
  return BucketPlans(buckets.size(), plan);
}

BucketPlans best_of_the_same(const std::vector<BucketFigures>& buckets) {
  BucketPlans best = same_for_all(buckets, 0);
  for (std::size_t plan = 1; plan < plan_count(buckets); ++plan) {
    const BucketPlans other = same_for_all(buckets, plan);
    if (predicted_seconds(buckets, other) < predicted_seconds(buckets, best)) best = other;
  }
  return best;
}

/// Returns how much the plans change the values: the sum of the numbers of all values' plans.
double change(const std::vector<BucketFigures>& buckets, const BucketPlans& plans) {
  double sum = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    sum += static_cast<double>(buckets[b].values) * static_cast<double>(plans[b]);
  }
  return sum;
}

}  // namespace

double predicted_seconds(const std::vector<BucketFigures>& buckets, const BucketPlans& plans) {
  Pipeline pipeline;
  for (std::size_t b = 0; b < buckets.size(); ++b) pipeline.begin(buckets[b].ready_s, buckets[b].by_plan[plans[b]]);
  return pipeline.drain();
}

BucketPlans best_mix(const std::vector<BucketFigures>& buckets) {
  constexpr int kSweeps = 2;
  BucketPlans best = best_of_the_same(buckets);
  double best_s = predicted_seconds(buckets, best);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t plan = 0; plan < plan_count(buckets); ++plan) {
        const std::size_t before = std::exchange(best[b], plan);
        const double seconds = predicted_seconds(buckets, best);
        if (seconds < best_s) {
          best_s = seconds;
        } else {
          best[b] = before;
        }
      }
    }
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const std::size_t needed = best[b];
    best[b] = 0;
    while (best[b] < needed && predicted_seconds(buckets, best) > kSameTime * best_s) ++best[b];
  }
  return best;
}

std::vector<BucketPlans> contenders(const std::vector<BucketFigures>& buckets) {
  std::set<BucketPlans> all = {best_mix(buckets)};
  for (std::size_t plan = 0; plan < plan_count(buckets); ++plan) all.insert(same_for_all(buckets, plan));
  double best_s = std::numeric_limits<double>::infinity();
  for (const BucketPlans& plans : all) best_s = std::min(best_s, predicted_seconds(buckets, plans));
  std::vector<BucketPlans> worth_trying;
  for (const BucketPlans& plans : all) {
    const bool is_dense = change(buckets, plans) == 0;
    const double bound = (is_dense ? kDenseWorthTrying : kWorthTrying) * best_s;
    if (predicted_seconds(buckets, plans) <= bound) worth_trying.push_back(plans);
  }
  std::stable_sort(worth_trying.begin(), worth_trying.end(),
                   [&](const BucketPlans& a, const BucketPlans& b) { return change(buckets, a) < change(buckets, b); });
  return worth_trying;
}

std::size_t winner(const std::vector<std::vector<double>>& turns) {
  const auto beats = [&](std::size_t late, std::size_t early) {
    std::vector<double> ratios;
    for (const std::vector<double>& turn : turns) ratios.push_back(turn[late] / turn[early]);
    const auto faster = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio < 1; });
    return static_cast<std::size_t>(faster) + 1 >= turns.size() && kWorthIt * median(ratios) < 1;
  };
  std::size_t best = 0;
  for (std::size_t contender = 1; contender < turns[0].size(); ++contender) {
    if (beats(contender, best)) best = contender;
  }
  return best;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace octavo
