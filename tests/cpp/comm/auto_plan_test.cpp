// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/auto_plan.h"

#include <gtest/gtest.h>

#include <optional>

namespace octavo {

namespace {

constexpr std::uint64_t kMostSteps = 400;

/// Ranks in lockstep with given costs: an encoded bucket takes seconds of work and less time on the link.
struct World {
  double link_s = 1, work_s = 1;  // of a dense bucket on the link; of an encoded one on the thread
  std::vector<std::vector<std::size_t>> buckets = {{3}, {2, 1}, {0}};
  std::vector<std::int64_t> told;
  std::vector<AutoPlan> ranks;
  std::uint64_t messages = 0;
  double last_s = 0;

  World() {
    ranks.emplace_back(3, [this](std::vector<std::int64_t>& numbers) {
      told = numbers;
      ++messages;
    });
    // the numbers of the other ranks are ignored
    ranks.emplace_back(3, [this](std::vector<std::int64_t>& numbers) {
      ASSERT_EQ(numbers.size(), told.size());
      numbers = told;
    });
  }

  PhaseSeconds cost(std::size_t plan) const {
    if (plan == 0) return {0, link_s, 0, 0, 0};
    const double link = link_s / (plan == 1 ? 2 : 8);
    return {work_s / 3, link / 2, work_s / 3, link / 2, work_s / 3};
  }

  /// Makes one step of all ranks. Returns the plan of each bucket, which is the same on all ranks.
  BucketPlans step() {
    std::optional<BucketPlans> all;
    double exchange_s = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      AutoPlan& plan = ranks[rank];
      plan.begin_step(rank == 0 ? last_s : 1e3);
      BucketPlans plans;
      for (const auto& parameters : buckets) {
        const AutoPlan::Turn turn = plan.next_bucket(parameters, 100);
        plans.push_back(turn.plan);
        if (turn.is_alone) plan.record(0, rank == 0 ? cost(turn.plan) : PhaseSeconds{1e6, 1, 1, 1, 1});
        if (rank == 0) exchange_s += std::max(cost(turn.plan).wait_up * 2, turn.plan == 0 ? 0 : work_s);
      }
      EXPECT_EQ(plans, all.value_or(plans)) << "rank " << rank;
      all = plans;
    }
    last_s = exchange_s;
    return *all;
  }
  bool settled() const { return ranks[0].report().is_settled; }
  /// Makes steps until the plan has been chosen. Returns how many.
  std::uint64_t settle() {
    std::uint64_t steps = 1;
    while (step(), !settled() && steps < kMostSteps) ++steps;
    EXPECT_TRUE(settled());
    return steps;
  }
};

TEST(AutoPlan, NothingIsCompressedUntilTheBucketsAreKnown) {
  World world;
  const auto rebuilt = world.buckets;
  world.buckets = {{0, 1, 2, 3}};  // DDP rebuilds its buckets after the first step
  EXPECT_EQ(world.step(), (BucketPlans{0}));
  world.buckets = rebuilt;
  EXPECT_EQ(world.step(), (BucketPlans{0, 0, 0}));
  std::vector<BucketPlans> probed;
  for (int step = 0; step < 6; ++step) probed.push_back(world.step());
  for (std::size_t step = 0; step < 6; ++step) EXPECT_EQ(probed[step], BucketPlans(3, step / 2)) << step;
}

TEST(AutoPlan, TheFastestPlanIsChosenByRank0sFigures) {
  World fast, slow, between;
  fast.link_s = 0.01;
  slow.link_s = 100;
  between.link_s = 1.6;
  between.work_s = 0.9;
  EXPECT_LT(fast.settle(), 10U);  // no other plan was worth a trial
  EXPECT_EQ(fast.step(), (BucketPlans{0, 0, 0}));
  EXPECT_EQ(fast.messages, 1U);
  slow.settle();
  EXPECT_EQ(slow.step(), (BucketPlans{2, 2, 2}));
  EXPECT_LT(between.settle(), 90U);
  EXPECT_EQ(between.messages, 2U);
  const AutoPlan::Report report = between.ranks[0].report();
  EXPECT_GT(report.tried.size(), 1U);
  EXPECT_EQ(report.buckets.size(), 3U);
  EXPECT_EQ(report.buckets[1].parameters, (std::vector<std::size_t>{2, 1}));
  EXPECT_DOUBLE_EQ(report.buckets[1].figures.by_plan[0].wait_up, 1.6);
}

/// The first measurement is left out.
TEST(AutoPlan, MeasuringTakesAFiftiethOfTheTime) {
  World world;
  world.settle();
  double measuring = 0, all = 0;
  for (int step = 0; step < 20000; ++step) {
    world.step();
    all += world.last_s;
    measuring += world.settled() ? 0 : world.last_s;
  }
  EXPECT_GT(world.ranks[0].report().measurements, 2U);
  EXPECT_LE(measuring, 0.02 * all);
  EXPECT_GT(measuring, 0.01 * all);
}

TEST(AutoPlan, AChangeOfTheLinkIsNoticed) {
  World world;
  world.link_s = 0.01;
  world.settle();
  for (int step = 0; step < 120; ++step) world.step();
  EXPECT_EQ(world.step(), (BucketPlans{0, 0, 0}));
  world.link_s = 20;
  std::uint64_t steps = 0;
  while (world.step() != BucketPlans{2, 2, 2} || !world.settled()) ASSERT_LT(++steps, 250U);
}

TEST(AutoPlan, OtherBucketsAreMeasuredAnew) {
  World world;
  world.link_s = 100;
  world.settle();
  EXPECT_EQ(world.step(), (BucketPlans{2, 2, 2}));
  world.buckets = {{3}, {2}, {1}, {0}};
  EXPECT_EQ(world.step(), (BucketPlans{2, 0, 0, 0}));  // buckets that are not known are sent dense
  EXPECT_EQ(world.step(), (BucketPlans{0, 0, 0, 0}));
  EXPECT_FALSE(world.settled());
  world.settle();
  EXPECT_EQ(world.step(), (BucketPlans{2, 2, 2, 2}));
}

/// A model may have other buckets in every step: then nothing is compressed, and nothing fails.
TEST(AutoPlan, BucketsThatAreNeverTheSameAreNotCompressed) {
  World world;
  for (int step = 0; step < 60; ++step) {
    world.buckets = {{static_cast<std::size_t>(step % 2)}};
    EXPECT_EQ(world.step(), (BucketPlans{0}));
  }
  EXPECT_EQ(world.messages, 0U);
}

}  // namespace

}  // namespace octavo
