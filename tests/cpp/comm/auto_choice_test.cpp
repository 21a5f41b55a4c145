// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/auto_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace octavo {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The seconds of a bucket's phases: a dense bucket uses the link once, an encoded one twice.
PhaseSeconds dense(double link_s) { return {0.1, link_s, 0, 0, 0.1}; }
PhaseSeconds coded(double work_s, double link_s) {
  return {work_s / 3, link_s / 2, work_s / 3, link_s / 2, work_s / 3};
}

std::vector<BucketPlans> all_choices(std::size_t buckets, std::size_t plans) {
  std::vector<BucketPlans> all = {{}};
  for (std::size_t b = 0; b < buckets; ++b) {
    std::vector<BucketPlans> longer;
    for (const BucketPlans& one : all) {
      for (std::size_t plan = 0; plan < plans; ++plan) {
        longer.push_back(one);
        longer.back().push_back(plan);
      }
    }
    all = longer;
  }
  return all;
}

double least_of(const std::vector<BucketFigures>& buckets, const std::vector<BucketPlans>& choices) {
  double least = kNever;
  for (const BucketPlans& plans : choices) least = std::min(least, predicted_seconds(buckets, plans));
  return least;
}

std::vector<BucketPlans> same_for_all(std::size_t buckets, std::size_t plans) {
  std::vector<BucketPlans> all;
  for (std::size_t plan = 0; plan < plans; ++plan) all.emplace_back(buckets, plan);
  return all;
}

TEST(AutoChoice, ABucketAloneTakesAllOfItsPhases) {
  EXPECT_DOUBLE_EQ(predicted_seconds({{5, 1, {{1, 2, 3, 4, 0.5}}}}, {0}), 15.5);
  EXPECT_DOUBLE_EQ(predicted_seconds({}, {}), 0);
}

TEST(AutoChoice, TheLinkAndTheThreadWorkAtTheSameTime) {
  const auto predicted = [](PhaseSeconds cost, double apart_s) {
    std::vector<BucketFigures> buckets;
    for (int b = 0; b < 100; ++b) buckets.push_back({b * apart_s, 1, {cost}});
    return predicted_seconds(buckets, BucketPlans(100, 0));
  };
  EXPECT_NEAR(predicted(dense(10), 0), 1000, 1);     // the link is the bottleneck
  EXPECT_NEAR(predicted(coded(3, 0.5), 0), 300, 3);  // the thread is the bottleneck
  EXPECT_NEAR(predicted(coded(3, 3), 0), 300, 10);   // both are, and they work at the same time
  // Backward is the bottleneck. Of the exchange only two things add to its time: the last bucket, and the decoding of
  // the buckets before it, each of which is decoded when another one begins.
  EXPECT_NEAR(predicted(coded(3, 3), 20), 99 * 20 + 6, 2);
  EXPECT_NEAR(predicted(dense(10), 20), 99 * 20 + 10, 1);
}

/// Compares 100,000 choices, with buckets, links and codecs drawn at random: the mix is near the best one in every
/// case.
TEST(AutoChoice, TheBestMixIsNearTheBestOfAllChoices) {
  std::mt19937 random(0);
  const auto draw = [&](double most) { return std::uniform_real_distribution<>(0, most)(random); };
  const auto choices = all_choices(5, 4);
  for (int trial = 0; trial < 100; ++trial) {
    const double link = draw(2), backward = draw(3);
    std::vector<BucketFigures> buckets;
    for (int b = 0; b < 5; ++b) {
      const double size = 0.1 + draw(1);
      buckets.push_back({b * backward, 1 + static_cast<std::uint64_t>(1000 * size), {}});
      for (const double bits : {32.0, 16.0, 8.0, 4.0}) {
        buckets.back().by_plan.push_back(bits == 32.0 ? dense(link * size * bits)
                                                      : coded(draw(4) * size, link * size * bits));
      }
    }
    const double best = predicted_seconds(buckets, best_mix(buckets));
    EXPECT_LE(best, 1.01 * least_of(buckets, same_for_all(5, 4))) << trial;
    EXPECT_LE(best, 1.1 * least_of(buckets, choices)) << trial;
  }
}

TEST(AutoChoice, WhatIsHiddenBehindBackwardIsNotChanged) {
  std::vector<BucketFigures> buckets;
  for (int b = 0; b < 6; ++b) buckets.push_back({b * 100.0, 1000, {dense(50), coded(1, 25), coded(1, 5)}});
  EXPECT_EQ(best_mix(buckets), (BucketPlans{0, 0, 0, 0, 0, 2}));
}

TEST(AutoChoice, EachBucketGetsThePlanThatSuitsIt) {
  // the codec is slow for every other bucket, for example because its gradients are on another device
  std::vector<BucketFigures> buckets;
  for (int b = 0; b < 6; ++b) buckets.push_back({0, 1000, {dense(10), coded(b % 2 == 0 ? 1 : 100, 1)}});
  EXPECT_EQ(best_mix(buckets), (BucketPlans{1, 0, 1, 0, 1, 0}));
}

TEST(AutoChoice, OnlyWhatMayWinIsTried) {
  const std::vector<BucketFigures> fast = {{0, 10, {dense(1), coded(9, 0.5), coded(9, 0.2)}},
                                           {0, 10, {dense(1), coded(9, 0.5), coded(9, 0.2)}}};
  EXPECT_EQ(contenders(fast), (std::vector<BucketPlans>{{0, 0}}));
  const std::vector<BucketFigures> slow = {{0, 10, {dense(90), coded(1, 45), coded(1, 11)}},
                                           {0, 10, {dense(90), coded(1, 45), coded(1, 11)}}};
  EXPECT_EQ(contenders(slow), (std::vector<BucketPlans>{{2, 2}}));
  const std::vector<BucketFigures> near = {{0, 10, {dense(10), coded(1, 8), coded(1, 7)}}};
  // the plans that change the values least come first
  EXPECT_EQ(contenders(near), (std::vector<BucketPlans>{{0}, {1}, {2}}));
  const std::vector<BucketFigures> doubtful = {{0, 10, {dense(20), coded(1, 19), coded(1, 7)}}};
  // dense is left out only where it is predicted to be much slower still
  EXPECT_EQ(contenders(doubtful), (std::vector<BucketPlans>{{0}, {2}}));
  const std::vector<BucketFigures> not_measured = {{0, 10, {{kNever, kNever, kNever, kNever, kNever}, coded(1, 8)}}};
  EXPECT_EQ(contenders(not_measured), (std::vector<BucketPlans>{{1}}));
}

TEST(AutoChoice, NoiseDecidesForThePlanThatChangesLess) {
  EXPECT_EQ(winner({{1, 0.8}, {1, 0.8}, {1, 0.8}, {1, 1.2}, {1, 1.1}}), 0U);
  EXPECT_EQ(winner({{1, 0.8}, {1, 0.8}, {1, 0.9}, {1, 1.2}, {1, 0.9}}), 1U);
}

TEST(AutoChoice, TheWinnerIsFasterByThreePercentOrChangesLess) {
  const std::vector<double> times = {0.5, 0.98, 1.0, 1.02, 1.04, 3.0};
  for (const double a : times) {
    for (const double b : times) {
      for (const double c : times) {
        const std::vector<double> one = {a, b, c};
        const bool second = 1.03 * b < a, third = 1.03 * c < (second ? b : a);
        const std::size_t expected = third ? 2 : second ? 1 : 0;
        // a turn in which everything was slow and a turn in which one contender was held up decide nothing
        std::vector<double> slow = {10 * a, 10 * b, 10 * c}, held_up = {a, b, 50 * c};
        EXPECT_EQ(winner({one, slow, one, held_up, one}), expected) << a << ' ' << b << ' ' << c;
        EXPECT_LE(one[expected], 1.03 * std::min({a, b, c}));
      }
    }
  }
}

}  // namespace

}  // namespace octavo
