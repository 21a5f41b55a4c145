// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/count_sketch.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
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

/// Returns heavy elements, to which each rank contributes, with a little noise of the rank's own.
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
      if (world == 1) continue;  // a rank without peers maps nothing
      EXPECT_EQ(first.count_nonzero().item<std::int64_t>(), kSketched / 1000);
      const at::Tensor is_heavy = mean > 5;
      const double error = ((first - mean) * is_heavy).abs().max().item<double>();
      EXPECT_LT(error, is_exact ? 1e-5 : 0.2) << "world " << world;
    }
  }
}

/// The result is what the rules compute from the mean of the sketches.
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
    // the result is taken out of the sketch: its cells become empty, and the others stay as they are
    at::Tensor taken = at::zeros_like(cells);
    insert_sketch(c10::kCPU, {result.const_data_ptr<float>()}, kSketched, shape, taken.mutable_data_ptr<float>());
    EXPECT_TRUE(at::allclose(steps.memory(), cells.masked_fill(taken.ne(0), 0), 1e-5, 1e-6));
    EXPECT_FALSE(steps.residual().defined());
  });
}

/// FetchSGD in torch; begins with the mean of the sketches.
struct FetchSgdReference {
  rules::CountSketch shape;
  float momentum;
  at::Tensor velocity = at::zeros({static_cast<std::int64_t>(shape.cells())}), owed = at::zeros_like(velocity);

  at::Tensor sketch_of(const at::Tensor& values) const {
    at::Tensor cells = at::zeros_like(owed);
    insert_sketch(c10::kCPU, {values.const_data_ptr<float>()}, kSketched, shape, cells.mutable_data_ptr<float>());
    return cells;
  }
  at::Tensor step(const std::vector<at::Tensor>& values, std::int64_t taken) {
    at::Tensor mean = sketch_of(values[0]);
    for (std::size_t rank = 1; rank < values.size(); ++rank) mean += sketch_of(values[rank]);
    velocity = momentum * velocity + mean * (1.0F / static_cast<float>(values.size()));
    owed = owed + velocity;
    at::Tensor estimates = at::zeros({kSketched}), result = at::zeros({kSketched});
    estimate_sketch(c10::kCPU, owed.const_data_ptr<float>(), shape, kSketched, estimates.mutable_data_ptr<float>());
    const at::Tensor largest = std::get<1>(estimates.abs().topk(taken));
    result.index_put_({largest}, estimates.index({largest}));
    const at::Tensor is_taken = sketch_of(result).ne(0);
    velocity = velocity.masked_fill(is_taken, 0);
    owed = owed.masked_fill(is_taken, 0);
    return result;
  }
};

TEST(CountSketchMap, MomentumAndErrorLiveInTheSketch) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      // one less than the 40 heavy elements: the 40th could be a small one, and rounding would choose another
      constexpr std::int64_t kTaken = 39;
      MapSteps steps(backend, sketch(/*is_exact=*/false, 0.0004), kSketchedShape, /*feedback=*/true, /*momentum=*/0.5F);
      FetchSgdReference reference{{0x7F4A7C159E3779B9, 3, 96000 / 30 / 64 * 64}, 0.5F};
      for (int step = 0; step < 4; ++step) {
        std::vector<at::Tensor> values;
        for (int of = 0; of < world; ++of) values.push_back(heavy_values(of, 10.0F + static_cast<float>(step)));
        at::Tensor result = values[static_cast<std::size_t>(rank)].clone();
        EXPECT_TRUE(steps.step(result).finite);
        EXPECT_TRUE(at::allclose(result, reference.step(values, kTaken), 1e-4, 1e-5)) << "step " << step;
        const at::Tensor memory = at::cat({reference.owed, reference.velocity});
        EXPECT_TRUE(at::allclose(steps.memory(), memory, 1e-4, 1e-5)) << "step " << step;
      }
      at::Tensor zeros = at::zeros({kSketched}), poisoned = at::full({kSketched}, std::nanf(""));
      const at::Tensor before = steps.memory().clone();
      EXPECT_TRUE(steps.step(zeros).finite);
      EXPECT_FALSE(zeros.any().item<bool>()) << "a tensor without gradients rests";
      EXPECT_FALSE(steps.step(poisoned, /*commit=*/false).finite);
      EXPECT_TRUE(at::equal(steps.memory(), before));
    });
  }
}

/// Feedback also sends elements that are never among the largest of a step.
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

/// One NaN makes more estimates NaN than are taken, and the element of the NaN itself may not be among those taken.
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

/// Counts a thread's requests to torch's allocator of the CPU while this object exists.
class CountedAllocations final : public c10::Allocator {
 public:
  CountedAllocations() { c10::SetCPUAllocator(this); }
  ~CountedAllocations() override { c10::SetCPUAllocator(inner_); }
  c10::DataPtr allocate(std::size_t bytes) override {
    ++of_thread;
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }

  static inline thread_local int of_thread = 0;

 private:
  c10::Allocator* inner_ = c10::GetCPUAllocator();
};

TEST(CountSketchMap, ASteadyStepAllocatesNothing) {
  CountedAllocations counted;
  for (const bool is_exact : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      MapSteps steps(backend, sketch(is_exact), kSketchedShape, /*feedback=*/true);
      for (int step = 0; step < 4; ++step) {
        at::Tensor values = heavy_values(rank);
        CountedAllocations::of_thread = 0;
        steps.step(values);
        const int allocations = CountedAllocations::of_thread;
        EXPECT_TRUE(step < 2 || allocations == 0) << allocations << (is_exact ? ", exact, step " : ", step ") << step;
      }
    });
  }
}

/// The bytes follow from the images' sizes: 4 (W - 1) bytes per float each way, over all ranks together.
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
      constexpr int kHeader = 20;  // in bytes, at most
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
  for (const char* text : {"sketch:0.1", "sketch:0.1:0.02", "sketch:0.05:exact", "sketch:0.05:0.001:exact+ef",
                           "sketch:0.1+fetchsgd", "sketch:0.1:0.02+fetchsgd:0.5+warmup:9"}) {
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
