// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/compressor.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "octavo/comm/parameter_info.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/compressor_steps.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using compressor_steps::bucket_of;
using compressor_steps::copy;
using compressor_steps::expect_equal;
using compressor_steps::kCount;
using compressor_steps::kSlots;
using compressor_steps::make;
using compressor_steps::owed;
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

TEST(Compressor, ANaNStepLeavesNoTraceOnAnyRank) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    at::Tensor first = bucket_of(rank, 0);
    compressor.reduce(first, kSlots);
    const auto before = copy(compressor.state().tensors);
    // of `weight`: what this rank's codes left out, and what the codes of its own range left out
    EXPECT_EQ(before.size(), 2U);

    compressor.begin_step();
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(INFINITY);
    compressor.reduce(bad, kSlots);
    EXPECT_FALSE(at::isfinite(bad).all().item<bool>());
    expect_equal(compressor.state().tensors, before);
    EXPECT_EQ(compressor.stats().nonfinite_steps, 1U);

    compressor.begin_step();
    at::Tensor good = bucket_of(rank, 2);
    compressor.reduce(good, kSlots);
    EXPECT_TRUE(at::isfinite(good).all().item<bool>());
  });
}

/// As where a backward pass raises an error behind its first bucket, and the state is saved for another start.
TEST(Compressor, AStepWithABucketUnderWayIsBrokenOff) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse("int4+ef"),
                          {{"first", kCount}, {"second", 64}});
    const auto first = [&](int step) { return bucket_of(rank, step).narrow(0, 0, kCount).clone(); };
    const auto second = [&](int step) { return bucket_of(rank, step).narrow(0, kCount, 64).clone(); };
    compressor.begin_step();
    compressor.reduce(first(0), {{0, 0}});
    compressor.reduce(second(0), {{1, 0}});
    const auto before = copy(compressor.state().tensors);
    compressor.begin_step();
    compressor.reduce(first(1), {{0, 0}});
    const auto lost = compressor.begin(second(1), {{1, 0}});
    EXPECT_FALSE(compressor.end_step());
    expect_equal(compressor.state().tensors, before);
    EXPECT_FALSE(before.empty());
  });
}

/// Counts the bytes of the CPU that this thread has allocated and not freed, as torch's profiler does.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override { live += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t live = 0;
};

/// The first bucket of a DDP model holds all of its gradients, and later ones a part each.
TEST(Compressor, BuffersBecomeSmallerWithTheBuckets) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    constexpr std::int64_t kPart = 1 << 16, kParts = 8;
    std::vector<ParameterInfo> parameters;
    std::vector<Slot> all;
    for (std::int64_t i = 0; i < kParts; ++i) {
      parameters.push_back({"part" + std::to_string(i), kPart});
      all.push_back({static_cast<std::size_t>(i), static_cast<std::uint64_t>(i * kPart)});
    }
    Compressor compressor(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse("bf16"), parameters);
    const auto bytes = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, bytes);
    at::Tensor whole = at::ones(kParts * kPart);
    compressor.begin_step();
    compressor.reduce(whole, all);
    const std::int64_t with_one_bucket = bytes->live;
    for (int step = 0; step < 17; ++step) {
      compressor.begin_step();
      for (const Slot& slot : all) {
        compressor.reduce(whole.narrow(0, static_cast<std::int64_t>(slot.offset), kPart), {{slot.parameter, 0}});
      }
    }
    // What is sent of a whole bucket is half of its values up and half down, in two bytes each. What is received has
    // room for the longest message ever, of which the CPU's memory is touched only where something comes.
    const std::int64_t sent = 2 * 2 * kParts * kPart / 2;
    EXPECT_LT(bytes->live, with_one_bucket - sent / 2);
  });
}

TEST(Compressor, OneRankAloneDividesAsSeveralDo) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    for (const char* plan : {"dense", "bf16", "int8+ef", "sign+ef", "dgc:0.5", "topk:0.5+ef", "sketch:0.5+ef"}) {
      Compressor compressor = make(backend, plan);
      at::Tensor bucket = at::full({kCount + 64}, 8.0F);
      compressor.begin_step();
      compressor.reduce(bucket, kSlots, /*divisor=*/4);
      EXPECT_EQ(bucket.max().item<float>(), 2) << plan;
    }
  });
}

TEST(Compressor, OneRankAloneKeepsTheMomentumOfASketch) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    constexpr std::int64_t kLarge = 1 << 16;
    Compressor compressor(std::make_unique<Wire>(backend, std::chrono::seconds(30)),
                          Plan::parse("sketch:0.1+fetchsgd:0.5"), {{"weight", kLarge, false}});
    for (const float expected : {1.0F, 1.5F, 1.75F}) {
      at::Tensor gradient = at::ones({kLarge});
      compressor.begin_step();
      compressor.reduce(gradient, {{0, 0}});
      EXPECT_TRUE(at::equal(gradient, at::full({kLarge}, expected)));
    }
  });
}

TEST(Compressor, OneRankAloneSendsItselfNoCodes) {
  run_ranks(1, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "topk:0.1+ef:0.9+hits");
    at::Tensor bucket = bucket_of(rank, 0);
    compressor.begin_step();
    compressor.reduce(bucket, kSlots);
    EXPECT_TRUE(at::equal(bucket, bucket_of(rank, 0)));
    EXPECT_TRUE(compressor.state().tensors.empty());
  });
}

TEST(Compressor, ANaNInOneBucketRollsBackTheStepsOtherBuckets) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    compressor.begin_step();
    at::Tensor weight = bucket_of(rank, 0).narrow(0, 0, kCount).clone(), norm = at::full({64}, std::nanf(""));
    compressor.reduce(weight, {{0, 0}});
    compressor.reduce(norm, {{1, 0}});
    EXPECT_TRUE(compressor.state().tensors.empty());
  });
}

TEST(Compressor, AStepThatWasBrokenOffLeavesNoTrace) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto before = copy(compressor.state().tensors);
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 1), kSlots);
    compressor.abandon_step();
    compressor.begin_step();
    expect_equal(compressor.state().tensors, before);
  });
}

/// Ranks differ for example where one of them went on from another checkpoint, or has another plan, whether of the same
/// size or not.
TEST(Compressor, RanksOfAnotherStepOrPlanAreTold) {
  constexpr const char* kPlans[][2] = {
      {"sign2:64", "sign2:64"}, {"sign2:64", "ternary:64"},   {"topk:0.1", "topk:0.1+hits"}, {"int4+ef", "int8+ef"},
      {"sign", "int8:8"},       {"int4+ef", "bf16:lossless"}, {"powersgd:1", "int8"}};
  for (const auto& plans : kPlans) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, plans[rank]);
      if (std::string_view(plans[0]) == plans[1]) compressor.load_state({.step = rank == 1 ? 7U : 6U});
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, 0);
      try {
        compressor.reduce(bucket, kSlots);
        ADD_FAILURE() << "rank " << rank << " averaged what does not belong together";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::communication) << error.what();
        EXPECT_NE(std::string(error.what()).find("another step, plan or model"), std::string::npos) << error.what();
      }
      EXPECT_TRUE(at::equal(bucket, bucket_of(rank, 0)));
    });
  }
}

/// Feedback for whose memory there is no room.
class FeedbackWithoutRoom final : public Feedback {
 public:
  std::string text() const override { return "ef"; }
  std::vector<Role> roles() const override { return {}; }
  void require_fit(const CodecText& /*plan*/, const Codec& /*codec*/) const override {}
  std::shared_ptr<FeedbackMemory> remember(StateStore& /*store*/, std::size_t /*parameter*/) const override {
    throw std::bad_alloc();
  }
};

TEST(Compressor, APlanForWhichThereIsNoMemoryChangesNothing) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto make_one = [&] {
      return Compressor(std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                        Plan::parse("sign+ef;weight=int4+ef"), {{"weight", kCount, false}, {"norm", 64, false}});
    };
    Compressor refuses = make_one(), undisturbed = make_one();
    const auto expect_same_step = [&](int number) {
      at::Tensor one = bucket_of(rank, number), other = bucket_of(rank, number);
      for (auto [compressor, bucket] : {std::pair{&refuses, &one}, {&undisturbed, &other}}) {
        compressor->begin_step();
        compressor->reduce(*bucket, kSlots);
      }
      EXPECT_TRUE(at::equal(one, other)) << number;
    };
    expect_same_step(0);
    Plan plan = Plan::parse("int8;weight=int4");
    plan.general.feedback = std::make_shared<const FeedbackWithoutRoom>();  // of the second parameter
    EXPECT_THROW(refuses.set_plan(plan), std::bad_alloc);
    EXPECT_EQ(refuses.plan().text(), "sign+ef;weight=int4+ef");
    expect_same_step(1);
    for (Compressor* const compressor : {&refuses, &undisturbed}) compressor->set_plan(Plan::parse("int8+ef"));
    expect_same_step(2);
  });
}

TEST(Compressor, WhatIsCalledBetweenStepsEndsAStep) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    const auto in_a_step = [&](auto call) {
      compressor.begin_step();
      compressor.reduce(bucket_of(rank, 0), {kSlots[0]});
      call();
      EXPECT_FALSE(compressor.is_in_step());
      EXPECT_THROW(compressor.reduce(bucket_of(rank, 0), {kSlots[1]}), Error);
      EXPECT_THROW(compressor.drop_step(), Error);
    };
    in_a_step([&] { compressor.state(); });
    in_a_step([&] { compressor.set_plan(Plan::parse("int8+ef")); });
    in_a_step([&] { compressor.set_exchange(Exchange::planned); });
    in_a_step([&] { compressor.drop_residuals(); });
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), {kSlots[0]});
    compressor.parameter_stats();
    compressor.stats();
    EXPECT_THROW(compressor.set_plan(Plan::parse("int8;no_such_parameter=int4")), Error);
    compressor.reduce(bucket_of(rank, 0), {kSlots[1]});
    compressor.drop_step();
  });
}

TEST(Compressor, PowersAreOfTheLastStepAlone) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    EXPECT_GT(compressor.gradient_powers()[0], 0.0F);
    compressor.begin_step();
    EXPECT_EQ(compressor.gradient_powers()[0], 0.0F);
  });
}

TEST(Compressor, ExemptParametersAreAveragedWhereOthersVote) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign-vote");
    compressor.begin_step();
    at::Tensor bucket = at::full({kCount + 64}, 3.0F);
    compressor.reduce(bucket, kSlots);
    EXPECT_TRUE(at::equal(bucket.narrow(0, kCount, 64), at::full({64}, 3.0F)));
    EXPECT_TRUE(at::equal(bucket.narrow(0, 0, kCount), at::ones({kCount})));
  });
}

TEST(Compressor, ExemptParametersAreExact) {
  std::vector<at::Tensor> results(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    results[static_cast<std::size_t>(rank)] = bucket_of(rank, 0);
    compressor.reduce(results[static_cast<std::size_t>(rank)], kSlots);
  });
  const at::Tensor expected = ((bucket_of(0, 0) + bucket_of(1, 0)) / 2).narrow(0, kCount, 64);
  EXPECT_TRUE(at::equal(results[0].narrow(0, kCount, 64), expected));
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(Compressor, StateSavedAndLoadedGoesOnWithTheSameBits) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor original = make(backend, "sign+ef");
    for (int step = 0; step < 3; ++step) {
      original.begin_step();
      at::Tensor bucket = bucket_of(rank, step);
      original.reduce(bucket, kSlots);
    }
    Compressor resumed = make(backend, "sign+ef");
    resumed.load_state(original.state());
    at::Tensor a = bucket_of(rank, 3), b = bucket_of(rank, 3);
    original.begin_step();
    original.reduce(a, kSlots);
    resumed.begin_step();
    resumed.reduce(b, kSlots);
    EXPECT_TRUE(at::equal(a, b));
  });
}

/// Otherwise it would be added to later gradients, once a plan with feedback is back.
TEST(Compressor, WhatThePlanDoesNotUseOfALoadedStateIsGoneWithTheNextStep) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor original = make(backend, "int4+ef");
    original.begin_step();
    original.reduce(bucket_of(rank, 0), kSlots);
    const auto saved = copy(original.state().tensors);
    ASSERT_EQ(saved.size(), 2U);

    for (const char* plan : {"dense", "int4", "delta+int4", "powersgd:2+ef"}) {
      Compressor other = make(backend, plan);
      other.load_state({saved});
      other.begin_step();
      EXPECT_TRUE(other.state().tensors.empty()) << plan;
    }
    Compressor at_once = make(backend, "dense");
    at_once.load_state({saved});
    at_once.set_plan(Plan::parse("int4+ef"));
    at_once.begin_step();
    expect_equal(at_once.state().tensors, saved);
  });
}

TEST(Compressor, ABadStateIsRefusedAndNothingChanges) {
  constexpr std::int64_t kHalf = kCount / 2;  // the number of elements that a rank of two sends, and that it owns
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.load_state({{{"worker/weight", at::ones({kHalf}, at::kBFloat16)}}});
    for (const auto& [key, size] :
         {std::pair("worker/other", kHalf), std::pair("worker/weight", kHalf - 1), std::pair("weight", kHalf)}) {
      std::map<std::string, at::Tensor> state = {{"owner/weight", at::zeros({kHalf}, at::kBFloat16)}};
      state[key] = at::zeros({size}, at::kBFloat16);
      EXPECT_THROW(compressor.load_state({state}), Error) << key;
    }
    EXPECT_EQ(compressor.state().tensors.size(), 1U);
    EXPECT_TRUE(at::equal(compressor.state().tensors.at("worker/weight"), at::ones({kHalf}, at::kBFloat16)));
  });
}

TEST(Compressor, MomentumIsAveragedInsideAndNotStored) {
  std::vector<at::Tensor> results(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    const at::Tensor momentum = at::full({kCount}, 2.0F), norm = at::full({64}, 3.0F);
    compressor.set_momentum({{"weight", {momentum, at::ones({kCount})}}, {"norm", {norm, at::full({64}, 10.0F)}}}, 0.9);
    compressor.begin_step();
    at::Tensor bucket = at::full({kCount + 64}, rank == 0 ? 1.0F : 3.0F);
    compressor.reduce(bucket, kSlots);
    EXPECT_NEAR(bucket[0].item<double>(), 0.9 * 2 + 0.1 * 2, 1e-5);
    EXPECT_NEAR(bucket[kCount].item<double>(), 0.9 * 3 + 0.1 * 10 * 2, 1e-5);
    EXPECT_TRUE(at::equal(momentum, at::full({kCount}, 2.0F)));
  });
}

TEST(Compressor, AMomentumWhoseMemoryHoldsLessIsRefused) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    const at::Tensor whole = at::ones({kCount}), repeated = at::ones({1}).expand({kCount});
    EXPECT_THROW(compressor.set_momentum({{"weight", {whole, repeated}}}, 0.9), Error);
    EXPECT_THROW(compressor.set_momentum({{"weight", {at::ones({2 * kCount}).slice(0, 0, 2 * kCount, 2), whole}}}, 0.9),
                 Error);
  });
}

TEST(Compressor, AVotingPlanCannotAverageMomenta) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign-vote");
    EXPECT_THROW(compressor.set_momentum({{"weight", {at::zeros({kCount}), at::ones({kCount})}}}, 0.9), Error);
  });
}

TEST(Compressor, PowersBelongToEveryPlan) {
  for (const char* plan : {"dense", "bf16", "int4+ef", "sign+ef"}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, plan);
      compressor.begin_step();
      compressor.reduce(at::full({kCount + 64}, rank == 0 ? 1.0F : 3.0F), kSlots);
      EXPECT_NEAR(compressor.gradient_powers()[0], (1.0 + 9.0) / 2, 1e-5) << plan;
      EXPECT_NEAR(compressor.gradient_powers()[1], (1.0 + 9.0) / 2, 1e-5) << plan;
    });
  }
}

TEST(Compressor, AComplexGradientIsAveragedInBothParts) {
  for (const char* plan : {"dense", "bf16", "int4"}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                            Plan::parse(plan),
                            {{"weight", 2 * kCount, false}, {"norm", 2 * 64, true}}};
      const float ours = rank == 0 ? 1.0F : 3.0F;
      at::Tensor bucket = at::complex(at::full({kCount + 64}, ours), at::full({kCount + 64}, -2 * ours));
      compressor.begin_step();
      compressor.reduce(bucket, kSlots);
      EXPECT_TRUE(at::allclose(at::real(bucket), at::full({kCount + 64}, 2.0F), 0.05, 0.5)) << plan;
      EXPECT_TRUE(at::allclose(at::imag(bucket), at::full({kCount + 64}, -4.0F), 0.05, 0.5)) << plan;
    });
  }
}

TEST(Compressor, ANaNInASparseBucketRollsBackTheStep) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const at::Tensor bad = at::full({1}, rank == 0 ? std::nanf("") : 1.0F);
    compressor.reduce(at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), bad, {4}).coalesce(), {});
    EXPECT_TRUE(compressor.state().tensors.empty());
    EXPECT_EQ(compressor.stats().nonfinite_steps, 1U);
  });
}

TEST(Compressor, DenseBytesAreThoseOfTheGradientsDtype) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(at::zeros({kCount + 64}, at::kBFloat16), kSlots);
    EXPECT_EQ(compressor.stats().dense_bytes, 2U * (kCount + 64));
  });
}

/// Makes one step in which one compressor has the gradients as they are and the other has them scaled.
void expect_same_step(Compressor& plain, Compressor& scaled, int rank, int step) {
  const double scale = std::array{1024.0, 0.5, 0x1p70}[step % 3];
  at::Tensor expected = bucket_of(rank, step), bucket = bucket_of(rank, step) * scale;
  scaled.set_gradient_scale(scale);
  for (Compressor* compressor : {&plain, &scaled}) compressor->begin_step();
  plain.reduce(expected, kSlots);
  scaled.reduce(bucket, kSlots);
  EXPECT_TRUE(at::equal(bucket / scale, expected)) << "step " << step;
  if (scale < 0x1p60) {  // larger squares are infinite
    EXPECT_EQ(plain.gradient_powers(), scaled.gradient_powers());
  }
}

/// A loss scale changes only the scale of the result, in all later steps, too.
TEST(Compressor, ResidualsAndMomentaAreInUnscaledUnits) {
  for (const bool momentum : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor plain = make(backend, "sign+ef"), scaled = make(backend, "sign+ef");
      for (Compressor* compressor : {&plain, &scaled}) {
        if (!momentum) continue;
        compressor->set_momentum({{"weight", {at::full({kCount}, 0.3F), at::full({kCount}, 2.0F)}}}, 0.5);
      }
      for (int step = 0; step < 4; ++step) expect_same_step(plain, scaled, rank, step);
      EXPECT_THROW(scaled.set_gradient_scale(0.0), Error);
      EXPECT_THROW(scaled.set_gradient_scale(INFINITY), Error);
      EXPECT_THROW(scaled.set_gradient_scale(1e39), Error);  // infinite in float32: it would hide all gradients
      EXPECT_THROW(scaled.set_gradient_scale(1e-40), Error);
    });
  }
}

TEST(Compressor, ResidualsOfGradientsAreNotAddedToMomenta) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef"), fresh = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto left = copy(compressor.state().tensors);
    EXPECT_FALSE(compressor.state().of_momenta);
    fresh.load_state({.step = compressor.step()});
    at::Tensor a = bucket_of(rank, 1), b = bucket_of(rank, 1);
    for (auto& [one, bucket] : {std::pair(&compressor, a), std::pair(&fresh, b)}) {
      one->set_momentum({{"weight", {at::zeros({kCount}), at::full({kCount}, 100.0F)}}}, 0.5);
      one->begin_step();
      one->reduce(bucket, kSlots);
    }
    EXPECT_TRUE(at::equal(a, b));
    EXPECT_TRUE(compressor.state().of_momenta);

    // residuals and phase may be restored in either order
    fresh.load_state({left, /*of_momenta=*/false});
    fresh.set_momentum({}, 0);
    fresh.begin_step();
    expect_equal(fresh.state().tensors, left);
  });
}

TEST(Compressor, TheSampleIsOfTheLargestMomentum) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    compressor.set_momentum(
        {{"norm", {at::zeros({64}), at::ones({64})}}, {"weight", {at::zeros({kCount}), at::ones({kCount})}}}, 0.5);
    EXPECT_FALSE(compressor.momentum_sample().values.defined());
    compressor.begin_step();
    at::Tensor bucket = bucket_of(rank, 0);
    compressor.reduce(bucket, kSlots);
    const SentMomenta::Sample sample = compressor.momentum_sample();
    EXPECT_EQ(sample.parameter, 0U);
    EXPECT_TRUE(at::equal(sample.values, bucket.slice(0, 0, kCount, static_cast<std::int64_t>(sample.stride))));
  });
}

/// A rank without peers sends nothing, but its momentum must go on, because the optimizer keeps none.
TEST(Compressor, MomentumGoesOnInAWorldOfOneRank) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "dense+dgc:0.5");
    for (const float expected : {1.0F, 1.5F, 1.75F}) {
      at::Tensor bucket = at::ones_like(bucket_of(0, 0));
      compressor.begin_step();
      compressor.reduce(bucket, kSlots);
      EXPECT_TRUE(at::equal(bucket, at::full_like(bucket, expected)));
    }
  });
}

TEST(Compressor, OwnMomentaAreInUnscaledUnits) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor plain = make(backend, "sign-vote"), scaled = make(backend, "sign-vote");
    for (Compressor* compressor : {&plain, &scaled}) compressor->keep_own_momenta({"weight", "norm"}, {0.5, 0.75});
    for (int step = 0; step < 4; ++step) {
      expect_same_step(plain, scaled, rank, step);
      expect_equal(plain.state().tensors, scaled.state().tensors);
    }
  });
}

TEST(Compressor, ResidualsSurviveAChangeOfWorldSize) {
  std::vector<CompressorState> old(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    old[static_cast<std::size_t>(rank)] = copy(compressor.state());
  });
  for (const int size : {3, 2}) {
    std::vector<std::map<std::string, at::Tensor>> now(static_cast<std::size_t>(size));
    run_ranks(size, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, "sign+ef");
      compressor.load_world(old);
      now[static_cast<std::size_t>(rank)] = copy(compressor.state().tensors);
      compressor.begin_step();
      compressor.reduce(bucket_of(rank, 1), kSlots);
    });
    EXPECT_TRUE(at::allclose(owed(now, kCount), owed({old[0].tensors, old[1].tensors}, kCount), 0.02, 0.01)) << size;
  }
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.load_world(old);
    auto bad = old, late = old;
    bad[1].tensors["worker/weight"] = at::zeros({3}, at::kBFloat16);
    EXPECT_THROW(compressor.load_world(bad), Error);
    ++late[1].step;
    EXPECT_THROW(compressor.load_world(late), Error);
    late = old;
    ++late[1].seed;
    EXPECT_THROW(compressor.load_world(late), Error);
  });
}

TEST(Compressor, EveryStepAndParameterDrawsItsOwnRounding) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto residual_at = [&](std::uint64_t step, std::size_t parameter) {
      Compressor compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                            Plan::parse("sign+ef"),
                            {{"a", kCount, false}, {"b", kCount, false}}};
      compressor.load_state({.step = step});
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, 0).narrow(0, 0, kCount).clone();
      compressor.reduce(bucket, {{parameter, 0}});
      return compressor.state().tensors.at(parameter == 0 ? "worker/a" : "worker/b").clone();
    };
    EXPECT_TRUE(at::equal(residual_at(7, 0), residual_at(7, 0)));
    EXPECT_FALSE(at::equal(residual_at(7, 0), residual_at(8, 0)));
    EXPECT_FALSE(at::equal(residual_at(7, 0), residual_at(7, 1)));
  });
}

}  // namespace

}  // namespace octavo
