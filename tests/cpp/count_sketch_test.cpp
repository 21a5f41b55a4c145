// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/count_sketch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "octavo/comm/plan.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/map_steps.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr std::int64_t kSketched = 96000, kHeavyElements = 40;
constexpr Matrix kSketchedShape = {1, kSketched};

LinearMapPtr sketch(bool is_exact, double taken = 0.001) { return std::make_shared<CountSketch>(0.1, taken, is_exact); }

/// Heavy elements, of which each rank has its share, and little noise of each rank's own.
at::Tensor heavy_values(int rank, float heavy = 10.0F) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
  at::Tensor values = at::randn({kSketched}, generator, at::kFloat) / 100;
  for (std::int64_t k = 0; k < kHeavyElements; ++k) values[k * 2003 + 5] += heavy + static_cast<float>(k + rank);
  return values;
}

at::Tensor heavy_mean(int world) {
  at::Tensor mean = at::zeros({kSketched});
  for (int rank = 0; rank < world; ++rank) mean += heavy_values(rank) / world;
  return mean;
}

TEST(CountSketchMap, TheHeavyElementsOfTheMeanAreFoundAndTheSameOnAllRanks) {
  for (const bool is_exact : {false, true}) {
    for (const int world : {1, 2, 3, 4}) {
      std::vector<at::Tensor> results(static_cast<std::size_t>(world));
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        MapSteps steps(backend, sketch(is_exact), kSketchedShape, /*feedback=*/true);
        for (int step = 0; step < 3; ++step) {
          at::Tensor values = heavy_values(rank);
          EXPECT_TRUE(steps.step(values).finite);
          if (step == 0) results[static_cast<std::size_t>(rank)] = values;
        }
        at::Tensor values = heavy_values(rank);
        steps.step(values);
        results[static_cast<std::size_t>(rank)] = at::cat({results[static_cast<std::size_t>(rank)], values});
      });
      for (const auto& result : results) EXPECT_TRUE(at::equal(result, results[0])) << "replicas differ";
      const at::Tensor first = results[0].slice(0, 0, kSketched), mean = heavy_mean(world);
      if (world == 1) continue;  // nothing is mapped
      EXPECT_EQ(first.count_nonzero().item<std::int64_t>(), kSketched / 1000);
      const at::Tensor is_heavy = mean > 5;
      const double error = ((first - mean) * is_heavy).abs().max().item<double>();
      EXPECT_LT(error, is_exact ? 1e-5 : 0.2) << "world " << world;
    }
  }
}

/// The result is what the rules make of the mean of the sketches.
TEST(CountSketchMap, TheResultIsTheEstimates) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    MapSteps steps(backend, sketch(/*is_exact=*/false), kSketchedShape, /*feedback=*/true);
    at::Tensor result = heavy_values(rank);
    steps.step(result);
    const std::uint64_t columns = 96000 / 30 / 64 * 64;
    const rules::CountSketch shape = {0x7F4A7C159E3779B9, 3, columns};
    at::Tensor cells = at::zeros({static_cast<std::int64_t>(shape.cells())}), estimates = at::zeros({kSketched});
    for (int of = 0; of < 2; ++of) {
      const at::Tensor values = heavy_values(of), own = at::zeros_like(cells);
      insert_sketch(c10::kCPU, {values.const_data_ptr<float>()}, kSketched, shape, own.mutable_data_ptr<float>());
      cells += own / 2;
    }
    estimate_sketch(c10::kCPU, cells.const_data_ptr<float>(), shape, kSketched, estimates.mutable_data_ptr<float>());
    const at::Tensor is_taken = result.ne(0);
    EXPECT_TRUE(at::allclose(result, estimates * is_taken, 1e-5, 1e-5));
    const double least = result.abs().masked_select(is_taken).min().item<double>();
    EXPECT_LE((estimates * is_taken.logical_not()).abs().max().item<double>(), least * 1.0001) << "not the largest";
    // what was taken leaves the sketch: its cells are empty, the others are the sketch
    at::Tensor taken = at::zeros_like(cells);
    insert_sketch(c10::kCPU, {result.const_data_ptr<float>()}, kSketched, shape, taken.mutable_data_ptr<float>());
    EXPECT_TRUE(at::allclose(steps.memory(), cells.masked_fill(taken.ne(0), 0), 1e-5, 1e-6));
    EXPECT_FALSE(steps.residual().defined());
  });
}

/// Elements that are never among the largest of one step are sent in the end.
TEST(CountSketchMap, FeedbackSendsTheSmallerToo) {
  for (const bool is_exact : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int) {
      constexpr int kSteps = 40;
      MapSteps steps(backend, sketch(is_exact, 0.0002), kSketchedShape, /*feedback=*/true);  // 20 elements
      MapSteps without(backend, sketch(is_exact, 0.0002), kSketchedShape, /*feedback=*/false);
      at::Tensor sum = at::zeros({kSketched}), sum_without = at::zeros({kSketched}), values = at::zeros({kSketched});
      for (std::int64_t k = 0; k < 40; ++k) values[k * 2003 + 5] = k < 20 ? 10.0F : 4.0F;
      for (int step = 0; step < kSteps; ++step) {
        at::Tensor own = values.clone(), same = values.clone();
        steps.step(own);
        without.step(same);
        sum += own / kSteps;
        sum_without += same / kSteps;
      }
      const at::Tensor smaller = values == 4;
      const double sent = (sum * smaller).sum().item<double>() / (20 * 4.0);
      const double sent_without = (sum_without * smaller).sum().item<double>() / (20 * 4.0);
      EXPECT_GT(sent, 0.8) << (is_exact ? "exact" : "estimates");
      EXPECT_LT(sent_without, 0.2) << "all are among the largest: the test shows nothing";
    });
  }
}

TEST(CountSketchMap, WhatAnExactStepLeavesOverIsTheResidual) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    MapSteps steps(backend, sketch(/*is_exact=*/true), kSketchedShape, /*feedback=*/true);
    at::Tensor result = heavy_values(rank);
    steps.step(result);
    const at::Tensor left = heavy_values(rank).masked_fill(result.ne(0), 0);
    EXPECT_TRUE(at::allclose(steps.residual().to(at::kFloat), left, 0.01, 1e-6));
  });
}

TEST(CountSketchMap, ANanOnOneRankReachesAllAndLeavesNoTrace) {
  for (const bool is_exact : {false, true}) {
    for (const float poison : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      run_ranks(3, [&](const BackendPtr& backend, int rank) {
        MapSteps steps(backend, sketch(is_exact), kSketchedShape, /*feedback=*/true);
        at::Tensor first = heavy_values(rank);
        steps.step(first);
        const at::Tensor& state = is_exact ? steps.residual() : steps.memory();
        const at::Tensor before = state.clone();
        at::Tensor poisoned = heavy_values(rank);
        if (rank == 1) poisoned[90000] = poison;
        EXPECT_FALSE(steps.step(poisoned, /*commit=*/false).finite);
        EXPECT_TRUE(at::isnan(poisoned).any().item<bool>());
        EXPECT_TRUE(at::equal(state, before));
        at::Tensor next = heavy_values(rank);
        EXPECT_TRUE(steps.step(next).finite);
        EXPECT_TRUE(at::isfinite(next).all().item<bool>());
      });
    }
  }
}

/// One NaN makes more estimates NaNs than are taken, and may not be one of these itself.
TEST(CountSketchMap, ANanAmongManyIsNotMissed) {
  for (const bool is_exact : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      MapSteps steps(backend, sketch(is_exact, 0.00001), kSketchedShape, /*feedback=*/true);  // one element
      at::Tensor values = heavy_values(rank);
      if (rank == 1) values[kSketched - 1] = std::nanf("");
      EXPECT_FALSE(steps.step(values, /*commit=*/false).finite);
      EXPECT_TRUE(at::isnan(values).any().item<bool>());
    });
  }
}

TEST(CountSketchMap, AZeroGradientKeepsTheState) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    MapSteps steps(backend, sketch(/*is_exact=*/false), kSketchedShape, /*feedback=*/true);
    at::Tensor values = heavy_values(rank), zeros = at::zeros({kSketched});
    steps.step(values);
    const at::Tensor before = steps.memory().clone();
    EXPECT_TRUE(before.any().item<bool>());
    EXPECT_TRUE(steps.step(zeros).finite);
    EXPECT_FALSE(zeros.any().item<bool>());
    EXPECT_TRUE(at::equal(steps.memory(), before));
  });
}

/// In bytes, as the images' sizes say: 4 (W - 1) of each, both ways, of all ranks together.
TEST(CountSketchMap, SendsTheSketchAlone) {
  for (const bool is_exact : {false, true}) {
    for (const int world : {2, 4}) {
      std::atomic<std::uint64_t> sent = 0;
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        MapSteps steps(backend, sketch(is_exact), kSketchedShape, /*feedback=*/true);
        at::Tensor values = heavy_values(rank);
        steps.step(values);
        sent += steps.sent_bytes();
      });
      const int floats = 96000 / 30 / 64 * 64 * 3 + (is_exact ? 96 : 0);
      const int messages = (is_exact ? 4 : 2) * world * (world - 1);
      constexpr int kHeader = 20;  // bytes, at most
      EXPECT_GE(sent, 2 * 4 * floats * (world - 1));
      EXPECT_LE(sent, 2 * 4 * floats * (world - 1) + messages * kHeader);
    }
  }
}

TEST(CountSketchMap, SmallTensorsAreNotWorthIt) {
  const CountSketch map(0.1, 0.0125, /*is_exact=*/false);
  EXPECT_TRUE(map.image_sizes({1, 0}, 1).empty());
  EXPECT_TRUE(map.image_sizes({1, 383}, 1).empty());
  EXPECT_EQ(map.image_sizes({1, 384}, 1), (std::vector<std::uint64_t>{192}));
  EXPECT_EQ(map.image_sizes({1000, 100}, 1), (std::vector<std::uint64_t>{9984}));
  EXPECT_EQ(CountSketch(0.1, 0.0125, true).image_sizes({1000, 100}, 1), (std::vector<std::uint64_t>{9984, 1250}));
}

TEST(CountSketchMap, PlansNameIt) {
  for (const char* text : {"sketch:0.1", "sketch:0.1:0.02", "sketch:0.05:exact", "sketch:0.05:0.001:exact+ef"}) {
    EXPECT_EQ(Plan::parse(text).text(), text);
  }
  for (const char* text : {"sketch", "sketch:0.6", "sketch:0", "sketch:exact", "sketch:0.1:2", "sketch:0.1:0.1:0.1"}) {
    try {
      Plan::parse(text);
      ADD_FAILURE() << text << " is no plan";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("as in sketch:0.1"), std::string::npos) << error.what();
    }
  }
}

}  // namespace

}  // namespace octavo
