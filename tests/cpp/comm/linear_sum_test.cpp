// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/linear_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/power_sgd.h"
#include "octavo/codec/registry.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"
#include "tests/cpp/map_steps.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr std::int64_t kRows = 48, kColumns = 96;
constexpr Matrix kShape = {kRows, kColumns};

at::Tensor noise(int seed, at::IntArrayRef size) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return at::randn(size, generator, at::kFloat);
}

/// Returns a rank's matrix of rank `of_rank`: most of it is the same on all ranks, and some of it is the rank's own.
at::Tensor matrix_of(int rank, std::int64_t of_rank) {
  const at::Tensor left = noise(1, {kRows, of_rank}) + noise(10 + rank, {kRows, of_rank}) / 10;
  return at::mm(left, noise(2, {of_rank, kColumns})).contiguous();
}

/// One rank's steps of such a matrix.
class Steps : public MapSteps {
 public:
  Steps(const BackendPtr& backend, LinearMapPtr map, bool feedback)
      : MapSteps(backend, std::move(map), kShape, feedback) {}
};

LinearMapPtr power_sgd(std::uint64_t rank, bool alternating = false) {
  return std::make_shared<PowerSgd>(rank, alternating);
}

at::Tensor mean_of(int world, std::int64_t of_rank) {
  at::Tensor mean = at::zeros({kRows, kColumns});
  for (int rank = 0; rank < world; ++rank) mean += matrix_of(rank, of_rank) / world;
  return mean;
}

double relative_error(const at::Tensor& result, const at::Tensor& expected) {
  return ((result - expected).norm() / expected.norm()).item<double>();
}

TEST(LinearSum, AMeanOfThatRankIsFoundAndTheSameOnAllRanks) {
  for (const int world : {2, 3, 4}) {
    std::vector<at::Tensor> results(static_cast<std::size_t>(world));
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      Steps steps(backend, power_sgd(4), /*feedback=*/false);
      at::Tensor values = matrix_of(rank, 4);
      const Outcome outcome = steps.step(values);
      EXPECT_TRUE(outcome.finite);
      EXPECT_GT(outcome.power[0], 0.0F);
      results[static_cast<std::size_t>(rank)] = values;
    });
    for (const auto& result : results) EXPECT_TRUE(at::equal(result, results[0])) << "replicas differ";
    EXPECT_LT(relative_error(results[0], mean_of(world, 4)), 1e-5) << "world " << world;
  }
}

/// A direction of a full-rank matrix that one step does not send is sent by a later one.
TEST(LinearSum, FeedbackSendsEverythingInTheEnd) {
  for (const bool alternating : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      constexpr int kSteps = 150;
      Steps steps(backend, power_sgd(4, alternating), /*feedback=*/true);
      Steps without(backend, power_sgd(4, alternating), /*feedback=*/false);
      at::Tensor sum = at::zeros({kRows, kColumns}), sum_without = at::zeros({kRows, kColumns});
      for (int step = 0; step < kSteps; ++step) {
        at::Tensor values = matrix_of(rank, 40), same = values.clone();
        steps.step(values);
        without.step(same);
        sum += values / kSteps;
        sum_without += same / kSteps;
      }
      const at::Tensor expected = mean_of(2, 40);
      EXPECT_LT(relative_error(sum, expected), 0.15) << (alternating ? "alternating" : "two rounds");
      EXPECT_GT(relative_error(sum_without, expected), 0.3) << "rank 4 is enough: the test shows nothing";
    });
  }
}

TEST(LinearSum, WhatAStepLeavesOverIsTheResidual) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Steps steps(backend, power_sgd(2), /*feedback=*/true);
    at::Tensor values = matrix_of(rank, 40);
    steps.step(values);
    const at::Tensor expected = matrix_of(rank, 40) - values;
    EXPECT_LT(relative_error(steps.residual().to(at::kFloat).view_as(expected), expected), 0.01);
  });
}

/// With the bits of a neighbouring rank's key as they are, rank 1 rounds as rank 0 does 64 elements further on.
TEST(LinearSum, RanksRoundTheirResidualsByOtherBits) {
  constexpr std::int64_t kCount = kRows * kColumns;
  std::vector<at::Tensor> rounded(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Steps steps(backend, power_sgd(1), /*feedback=*/true);
    // Their mean is zero, so that all of it is left over. It is halfway between two values of bfloat16.
    at::Tensor values = at::full({kRows, kColumns}, rank == 0 ? 1 + 0x1p-8F : -1 - 0x1p-8F);
    steps.step(values);
    EXPECT_EQ(values.count_nonzero().item<std::int64_t>(), 0);
    rounded[static_cast<std::size_t>(rank)] = steps.residual().to(at::kFloat).abs().flatten();
  });
  for (std::int64_t shift = 0; shift < kCount / 2; shift += 64) {
    const at::Tensor ahead = rounded[0].narrow(0, shift, kCount - shift), own = rounded[1].narrow(0, 0, kCount - shift);
    const double alike = ahead.eq(own).to(at::kDouble).mean().item<double>();
    EXPECT_LT(std::abs(alike - 0.5), 0.1) << "bits of rank 0, " << shift << " elements further on";
  }
}

TEST(LinearSum, ANanOnOneRankReachesAllAndLeavesNoTrace) {
  for (const float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    run_ranks(3, [&](const BackendPtr& backend, int rank) {
      Steps steps(backend, power_sgd(4), /*feedback=*/true), clean(backend, power_sgd(4), /*feedback=*/true);
      at::Tensor first = matrix_of(rank, 8);
      steps.step(first);
      const at::Tensor residual = steps.residual().clone(), memory = steps.memory().clone();
      at::Tensor poisoned = matrix_of(rank, 8);
      if (rank == 1) poisoned[5][7] = poison;
      const Outcome outcome = steps.step(poisoned, /*commit=*/false);
      EXPECT_FALSE(outcome.finite);
      EXPECT_TRUE(at::isnan(poisoned).all().item<bool>());
      EXPECT_TRUE(at::equal(steps.residual(), residual));
      EXPECT_TRUE(at::equal(steps.memory(), memory));
      at::Tensor next = matrix_of(rank, 8);
      EXPECT_TRUE(steps.step(next).finite);
      EXPECT_LT(relative_error(next, mean_of(3, 8)), 1.0);
    });
  }
}

/// Upstream's PowerSGD turns zeros into NaNs, or never sends anything again.
TEST(LinearSum, AZeroGradientAndThenAnotherOne) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Steps steps(backend, power_sgd(4), /*feedback=*/true);
    at::Tensor zeros = at::zeros({kRows, kColumns});
    const Outcome outcome = steps.step(zeros);
    EXPECT_TRUE(outcome.finite);
    EXPECT_EQ(outcome.power[0], 0.0F);
    EXPECT_FALSE(zeros.any().item<bool>());
    at::Tensor one_row = at::zeros({kRows, kColumns});  // a matrix of rank 1, which is less than 4
    one_row[3].fill_(static_cast<float>(rank + 1));
    const at::Tensor expected = one_row / (rank + 1) * 1.5;
    EXPECT_TRUE(steps.step(one_row).finite);
    EXPECT_LT(relative_error(one_row, expected), 1e-5);
    at::Tensor values = matrix_of(rank, 4);
    steps.step(values);
    EXPECT_LT(relative_error(values, mean_of(2, 4)), 1e-2) << "directions that were unused are lost";
  });
}

TEST(LinearSum, AlternatingFactorsBeginWithAZeroGradient) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Steps steps(backend, power_sgd(4, /*alternating=*/true), /*feedback=*/true);
    at::Tensor values = at::zeros({kRows, kColumns});
    EXPECT_TRUE(steps.step(values).finite);
    EXPECT_FALSE(values.any().item<bool>());
    at::Tensor sum = at::zeros({kRows, kColumns});
    constexpr int kSteps = 50;
    for (int step = 0; step < kSteps; ++step) {
      values = matrix_of(rank, 4);
      EXPECT_TRUE(steps.step(values).finite);
      sum += values / kSteps;
    }
    EXPECT_LT(relative_error(sum, mean_of(2, 4)), 0.1);
  });
}

TEST(LinearSum, OtherTensorsOfTheBucketTravelByTheirCodecs) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, MapSteps::kTimeout);
    PhaseSeconds seconds;
    LinearSum sum(wire, seconds, c10::kCPU);
    Steps steps(backend, power_sgd(4), /*feedback=*/false);
    at::Tensor values = matrix_of(rank, 4), vector = at::full({100}, rank + 1.0F), coded = at::full({640}, rank - 2.0F);
    const Codec &exact = block_coding(BlockCodec::fp32), &int8 = block_coding(BlockCodec::int8);
    const Contribution plain{vector.mutable_data_ptr<float>(), 100, &exact, &exact};
    const Contribution encoded{coded.mutable_data_ptr<float>(), 640, &int8, &int8};
    const Outcome outcome = sum.run({{}, {plain, steps.contribution(values), encoded}, 2, 5});
    EXPECT_TRUE(at::equal(vector, at::full({100}, 1.5F)));
    EXPECT_TRUE(at::allclose(coded, at::full({640}, -1.5F), 1e-2));
    EXPECT_LT(relative_error(values, mean_of(2, 4)), 1e-5);
    EXPECT_FLOAT_EQ(outcome.power[0], 2.5F);
    EXPECT_FLOAT_EQ(outcome.power[2], 2.5F);
    EXPECT_GT(outcome.power[1], 0.0F);
  });
}

/// The bytes follow from the images' sizes: 4 (W - 1) bytes per float each way, over all ranks together.
TEST(LinearSum, SendsTheFactorsAlone) {
  for (const bool alternating : {false, true}) {
    for (const int world : {2, 4}) {
      std::atomic<std::uint64_t> sent = 0;
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        Wire wire(backend, MapSteps::kTimeout);
        PhaseSeconds seconds;
        LinearSum sum(wire, seconds, c10::kCPU);
        Steps steps(backend, power_sgd(4, alternating), /*feedback=*/false);
        at::Tensor values = matrix_of(rank, 4);
        sum.run({{}, {steps.contribution(values)}, static_cast<double>(world), 5});
        sent += wire.sent_bytes();
      });
      const int factors = 4 * (alternating ? kColumns : kRows + kColumns);
      const int messages = (alternating ? 2 : 4) * world * (world - 1);
      constexpr int kHeader = 20;  // in bytes, at most
      EXPECT_GE(sent, 2 * 4 * factors * (world - 1));
      EXPECT_LE(sent, 2 * 4 * factors * (world - 1) + messages * kHeader);
    }
  }
}

TEST(LinearSum, OneRankKeepsItsGradient) {
  run_ranks(1, [&](const BackendPtr& backend, int rank) {
    Steps steps(backend, power_sgd(1), /*feedback=*/true);
    at::Tensor values = matrix_of(rank, 8);
    EXPECT_TRUE(steps.step(values).finite);
    EXPECT_TRUE(at::equal(values, matrix_of(rank, 8)));
  });
}

/// Where all ranks' values are zeros, reconstruct() is not called, and the next memory is kept as project() leaves it.
TEST(PowerSgd, ProjectLeavesNothingOfTheFirstMemoryUnwritten) {
  for (const bool alternating : {false, true}) {
    for (const std::uint64_t step : {1U, 2U}) {
      const LinearMapPtr map = power_sgd(4, alternating);
      const at::Tensor values = at::zeros({kRows, kColumns});
      MapInput input{kShape,   {values.const_data_ptr<float>()}, /*error_feedback=*/true, /*momentum=*/0, step,
                     /*key=*/7};
      const at::Tensor next = at::full({static_cast<std::int64_t>(map->memory_size(input))}, std::nanf(""));
      input.next_memory = next.mutable_data_ptr<float>();
      std::vector<at::Tensor> images;
      std::vector<float*> starts;
      for (const std::uint64_t size : map->image_sizes(kShape, step)) {
        images.push_back(at::zeros({static_cast<std::int64_t>(size)}));
        starts.push_back(images.back().mutable_data_ptr<float>());
      }
      for (std::size_t round = 0; round < images.size(); ++round) map->project(c10::kCPU, input, round, starts);
      EXPECT_TRUE(at::isfinite(next).all().item<bool>()) << (alternating ? "alternating" : "two rounds") << step;
    }
  }
}

TEST(PowerSgd, SmallMatricesAreNotWorthIt) {
  const PowerSgd map(4, false);
  EXPECT_TRUE(map.image_sizes({1, 1000}, 1).empty());
  EXPECT_TRUE(map.image_sizes({8, 8}, 1).empty());
  EXPECT_EQ(map.image_sizes({100, 200}, 1), (std::vector<std::uint64_t>{400, 800}));
  EXPECT_EQ(PowerSgd(4, true).image_sizes({100, 200}, 1), (std::vector<std::uint64_t>{400}));
  EXPECT_EQ(PowerSgd(4, true).image_sizes({100, 200}, 2), (std::vector<std::uint64_t>{800}));
}

}  // namespace

}  // namespace octavo
