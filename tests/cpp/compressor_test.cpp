// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/compressor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <thread>

#include "octavo/comm/layout.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr std::int64_t kCount = 4096;
const std::vector<Slot> kSlots = {{0, 0}, {1, kCount}};

Compressor make(const BackendPtr& backend, const char* plan) {
  return Compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                    Plan::parse(plan),
                    {{"weight", kCount, false}, {"norm", 64, true}}};
}

at::Tensor bucket_of(int rank, int step) {
  return at::remainder(at::arange(kCount + 64, at::kFloat) * (37 * (rank + 1)) + 11 * step, 101) / 50.5 - 1;
}

std::map<std::string, at::Tensor> copy(std::map<std::string, at::Tensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(Compressor, ANaNStepLeavesNoTraceOnAnyRank) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    at::Tensor first = bucket_of(rank, 0);
    compressor.reduce(first, kSlots);
    const auto before = copy(compressor.residuals());
    EXPECT_EQ(before.size(), 2U);  // of `weight`: what was left here, what was left of the own range

    compressor.begin_step();
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(INFINITY);
    compressor.reduce(bad, kSlots);
    EXPECT_FALSE(at::isfinite(bad).all().item<bool>());
    expect_equal(compressor.residuals(), before);
    EXPECT_EQ(compressor.stats().nonfinite_steps, 1U);

    compressor.begin_step();
    at::Tensor good = bucket_of(rank, 2);
    compressor.reduce(good, kSlots);
    EXPECT_TRUE(at::isfinite(good).all().item<bool>());
  });
}

TEST(Compressor, ANaNInOneBucketRollsBackTheStepsOtherBuckets) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+ef");
    compressor.begin_step();
    at::Tensor weight = bucket_of(rank, 0).narrow(0, 0, kCount).clone(), norm = at::full({64}, std::nanf(""));
    compressor.reduce(weight, {{0, 0}});
    compressor.reduce(norm, {{1, 0}});
    EXPECT_TRUE(compressor.residuals().empty());
  });
}

TEST(Compressor, AStepThatWasBrokenOffLeavesNoTrace) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto before = copy(compressor.residuals());
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 1), kSlots);
    compressor.abandon_step();
    compressor.begin_step();
    expect_equal(compressor.residuals(), before);
  });
}

/// As where a rank went on from another checkpoint, or with a plan of the same size.
TEST(Compressor, RanksOfAnotherStepOrPlanAreTold) {
  for (const bool of_another_plan : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, of_another_plan && rank == 1 ? "ternary:64" : "sign2:64");
      if (!of_another_plan) compressor.set_step(rank == 1 ? 7 : 6);
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, 0);
      try {
        compressor.reduce(bucket, kSlots);
        ADD_FAILURE() << "rank " << rank << " averaged what does not belong together";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::communication) << error.what();
      }
      EXPECT_TRUE(at::equal(bucket, bucket_of(rank, 0)));
    });
  }
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
    resumed.load_residuals(original.residuals());
    at::Tensor a = bucket_of(rank, 3), b = bucket_of(rank, 3);
    original.begin_step();
    original.reduce(a, kSlots);
    resumed.begin_step();
    resumed.reduce(b, kSlots);
    EXPECT_TRUE(at::equal(a, b));
  });
}

TEST(Compressor, ABadStateIsRefusedAndNothingChanges) {
  constexpr std::int64_t kHalf = kCount / 2;  // what a rank of two sends, and what it owns
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.load_residuals({{"worker/weight", at::ones({kHalf}, at::kBFloat16)}});
    for (const auto& [key, size] :
         {std::pair("worker/other", kHalf), std::pair("worker/weight", kHalf - 1), std::pair("weight", kHalf)}) {
      std::map<std::string, at::Tensor> state = {{"owner/weight", at::zeros({kHalf}, at::kBFloat16)}};
      state[key] = at::zeros({size}, at::kBFloat16);
      EXPECT_THROW(compressor.load_residuals(state), Error) << key;
    }
    EXPECT_EQ(compressor.residuals().size(), 1U);
    EXPECT_TRUE(at::equal(compressor.residuals().at("worker/weight"), at::ones({kHalf}, at::kBFloat16)));
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
    EXPECT_TRUE(compressor.residuals().empty());
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

/// A loss scale changes nothing but the scale of the result, also from step to step.
TEST(Compressor, ResidualsAndMomentaAreInUnscaledUnits) {
  for (const bool momentum : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor plain = make(backend, "sign+ef"), scaled = make(backend, "sign+ef");
      for (Compressor* compressor : {&plain, &scaled}) {
        if (!momentum) continue;
        compressor->set_momentum({{"weight", {at::full({kCount}, 0.3F), at::full({kCount}, 2.0F)}}}, 0.5);
      }
      for (int step = 0; step < 4; ++step) {
        const double scale = step % 2 == 0 ? 1024.0 : 0.5;
        at::Tensor expected = bucket_of(rank, step), bucket = bucket_of(rank, step) * scale;
        scaled.set_gradient_scale(scale);
        for (Compressor* compressor : {&plain, &scaled}) compressor->begin_step();
        plain.reduce(expected, kSlots);
        scaled.reduce(bucket, kSlots);
        EXPECT_TRUE(at::equal(bucket / scale, expected)) << "step " << step;
        EXPECT_EQ(plain.gradient_powers(), scaled.gradient_powers());
      }
      EXPECT_THROW(scaled.set_gradient_scale(0.0), Error);
      EXPECT_THROW(scaled.set_gradient_scale(INFINITY), Error);
    });
  }
}

TEST(Compressor, ResidualsOfGradientsAreNotAddedToMomenta) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef"), fresh = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto left = copy(compressor.residuals());
    EXPECT_FALSE(compressor.residuals_are_of_momenta());
    at::Tensor a = bucket_of(rank, 1), b = bucket_of(rank, 1);
    for (auto& [one, bucket] : {std::pair(&compressor, a), std::pair(&fresh, b)}) {
      one->set_momentum({{"weight", {at::zeros({kCount}), at::full({kCount}, 100.0F)}}}, 0.5);
      one->set_step(7);
      one->begin_step();
      one->reduce(bucket, kSlots);
    }
    EXPECT_TRUE(at::equal(a, b));
    EXPECT_TRUE(compressor.residuals_are_of_momenta());

    // the order in which residuals and phase are restored does not matter
    fresh.load_residuals(left, /*of_momenta=*/false);
    fresh.set_momentum({}, 0);
    fresh.begin_step();
    expect_equal(fresh.residuals(), left);
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
    const Compressor::Sample sample = compressor.momentum_sample();
    EXPECT_EQ(sample.parameter, 0U);
    EXPECT_TRUE(at::equal(sample.values, bucket.slice(0, 0, kCount, static_cast<std::int64_t>(sample.stride))));
  });
}

/// A rank without peers sends nothing, but its momentum must not stop: the optimizer has none.
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

/// A rank's own momentum after some gradients of bucket_of, and the update that it sends last.
struct Lion {
  at::Tensor momentum = at::zeros({kCount + 64}), update;
  void step(const at::Tensor& gradient) {
    update = 0.9 * momentum + 0.1 * gradient;
    momentum = 0.99 * momentum + 0.01 * gradient;
  }
};

TEST(Compressor, EachRankSendsTheSignOfItsOwnMomentum) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign-vote");
    compressor.keep_own_momenta({"weight", "norm"}, {0.9, 0.99});
    std::vector<Lion> ranks(3);
    for (int step = 0; step < 4; ++step) {
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, step);
      compressor.reduce(bucket, kSlots);
      at::Tensor votes = at::zeros({kCount + 64}), sum = at::zeros({kCount + 64});
      for (int other = 0; other < 3; ++other) {
        Lion& lion = ranks[static_cast<std::size_t>(other)];
        lion.step(bucket_of(other, step));
        votes += lion.update.sign();
        sum += lion.update;
      }
      EXPECT_TRUE(at::equal(bucket.narrow(0, 0, kCount), votes.sign().narrow(0, 0, kCount))) << "step " << step;
      EXPECT_TRUE(at::allclose(bucket.narrow(0, kCount, 64), (sum / 3).narrow(0, kCount, 64), 1e-5, 1e-7));
      const Lion& own = ranks[static_cast<std::size_t>(rank)];
      const auto state = compressor.residuals();
      EXPECT_TRUE(at::allclose(state.at("momentum/weight"), own.momentum.narrow(0, 0, kCount), 1e-5, 1e-7));
      EXPECT_TRUE(at::allclose(state.at("momentum/norm"), own.momentum.narrow(0, kCount, 64), 1e-5, 1e-7));
    }
  });
}

TEST(Compressor, OwnMomentaOutliveAChangeOfPlanAndNotTheirPhase) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign-vote");
    compressor.keep_own_momenta({"weight"}, {0.9, 0.99});
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto before = copy(compressor.residuals());
    EXPECT_EQ(before.size(), 1U);
    compressor.set_plan(Plan::parse("int4"));
    compressor.drop_residuals();
    compressor.keep_own_momenta({"weight"}, {0.9, 0.99});
    expect_equal(compressor.residuals(), before);
    compressor.keep_own_momenta({}, {0.9, 0.99});
    EXPECT_TRUE(compressor.residuals().empty());
    compressor.begin_step();
    at::Tensor bucket = at::full({kCount + 64}, 3.0F);
    compressor.reduce(bucket, kSlots);
    EXPECT_NEAR(bucket[0].item<double>(), 3.0, 1e-5) << "gradients are averaged again";
    EXPECT_THROW(compressor.keep_own_momenta({"other"}, {0.9, 0.99}), Error);
    EXPECT_THROW(compressor.keep_own_momenta({"weight"}, {0.9, 1.0}), Error);
  });
}

TEST(Compressor, ANaNOnOneRankLeavesAllOwnMomentaAsTheyWere) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign-vote");
    compressor.keep_own_momenta({"weight", "norm"}, {0.9, 0.9});
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const auto before = copy(compressor.residuals());
    compressor.begin_step();
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(std::nanf(""));
    compressor.reduce(bad, kSlots);
    EXPECT_FALSE(at::isfinite(bad).all().item<bool>());
    expect_equal(compressor.residuals(), before);
  });
}

/// A momentum that cancels the gradient exactly sends nothing, and becomes what it should all the same.
TEST(Compressor, AnUpdateOfZeroStillChangesTheMomentum) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign-vote");
    compressor.keep_own_momenta({"weight"}, {0.5, 0.5});
    for (const float gradient : {2.0F, -1.0F}) {
      compressor.begin_step();
      at::Tensor bucket = at::full({kCount + 64}, gradient);
      compressor.reduce(bucket, kSlots);
      EXPECT_TRUE(at::equal(bucket.narrow(0, 0, kCount), at::full({kCount}, gradient > 0 ? 1.0F : 0.0F)));
    }
    EXPECT_TRUE(at::equal(compressor.residuals().at("momentum/weight"), at::zeros({kCount})));
  });
}

TEST(Compressor, OwnMomentaAreInUnscaledUnits) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor plain = make(backend, "sign-vote"), scaled = make(backend, "sign-vote");
    for (Compressor* compressor : {&plain, &scaled}) compressor->keep_own_momenta({"weight", "norm"}, {0.5, 0.75});
    for (int step = 0; step < 4; ++step) {
      const double scale = step % 2 == 0 ? 1024.0 : 0.5;
      at::Tensor expected = bucket_of(rank, step), bucket = bucket_of(rank, step) * scale;
      scaled.set_gradient_scale(scale);
      for (Compressor* compressor : {&plain, &scaled}) compressor->begin_step();
      plain.reduce(expected, kSlots);
      scaled.reduce(bucket, kSlots);
      EXPECT_TRUE(at::equal(bucket / scale, expected)) << "step " << step;
      EXPECT_EQ(plain.gradient_powers(), scaled.gradient_powers());
      expect_equal(plain.residuals(), scaled.residuals());
    }
  });
}

/// What a world still owes to the average, by element: the senders' residuals over W, and the owners'.
at::Tensor owed(const std::vector<std::map<std::string, at::Tensor>>& world, std::uint64_t count) {
  at::Tensor total = at::zeros({static_cast<std::int64_t>(count)});
  const int size = static_cast<int>(world.size());
  for (int rank = 0; rank < size; ++rank) {
    const Sent sent = sent_part(count, rank, size);
    const at::Tensor& worker = world[static_cast<std::size_t>(rank)].at("worker/weight");
    const at::Tensor& owner = world[static_cast<std::size_t>(rank)].at("owner/weight");
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool own = i >= sent.own.first && i < sent.own.first + sent.own.count;
      const auto at_owner = static_cast<std::int64_t>(i - sent.own.first);
      const auto at_worker = static_cast<std::int64_t>(own ? 0 : sent.index(i));
      total[static_cast<std::int64_t>(i)] +=
          own ? owner[at_owner].item<float>() : worker[at_worker].item<float>() / size;
    }
  }
  return total;
}

TEST(Compressor, ResidualsSurviveAChangeOfWorldSize) {
  std::vector<std::map<std::string, at::Tensor>> old(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    old[static_cast<std::size_t>(rank)] = copy(compressor.residuals());
  });
  for (const int size : {3, 2}) {
    std::vector<std::map<std::string, at::Tensor>> now(static_cast<std::size_t>(size));
    run_ranks(size, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, "sign+ef");
      compressor.load_residuals_of(old);
      now[static_cast<std::size_t>(rank)] = copy(compressor.residuals());
      compressor.begin_step();
      compressor.reduce(bucket_of(rank, 1), kSlots);
    });
    EXPECT_TRUE(at::allclose(owed(now, kCount), owed(old, kCount), 0.02, 0.01)) << size;
  }
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.load_residuals_of(old);
    auto bad = old;
    bad[1]["worker/weight"] = at::zeros({3}, at::kBFloat16);
    EXPECT_THROW(compressor.load_residuals_of(bad), Error);
  });
}

/// A network of so many seconds a byte, of the two kinds of transfers.
class SlowBackend : public c10d::Backend {
 public:
  SlowBackend(BackendPtr inner, double all_to_all_s, double all_reduce_s)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        all_to_all_s_(all_to_all_s),
        all_reduce_s_(all_reduce_s) {}

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    travel(all_to_all_s_ * static_cast<double>(input.nbytes()));
    return inner_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    travel(all_reduce_s_ * static_cast<double>(tensors.at(0).nbytes()));
    return inner_->allreduce(tensors, options);
  }

 private:
  static void travel(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

  BackendPtr inner_;
  double all_to_all_s_, all_reduce_s_;
};

TEST(Compressor, AutoChoosesByWhatTheNetworkTakes) {
  // Seconds a byte: a dense bucket takes 64 ms, int8+ef 16 ms, int4+ef 9 ms. A busy machine takes some of them, too:
  // which of the last two is chosen is no matter here (auto_choice_test).
  constexpr double kFast = 0, kSlow = 4e-6;
  using Names = std::set<std::string>;
  for (const auto& [all_to_all_s, all_reduce_s, expected] :
       {std::tuple(kSlow, kSlow, Names{"int8+ef", "int4+ef"}), std::tuple(kSlow, kFast, Names{"dense"})}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(c10::make_intrusive<SlowBackend>(backend, all_to_all_s, all_reduce_s), "auto");
      for (int step = 0; step < 100 && !compressor.auto_stats()->report.is_settled; ++step) {
        compressor.begin_step();
        compressor.reduce(bucket_of(rank, step), kSlots);
      }
      EXPECT_TRUE(expected.contains(compressor.parameter_stats()[0].plan)) << compressor.parameter_stats()[0].plan;
      EXPECT_EQ(compressor.parameter_stats()[1].plan, "dense");  // exempt
      const AutoStats stats = *compressor.auto_stats();
      EXPECT_TRUE(expected.contains(stats.plans.at(stats.report.buckets.at(0).plan)));
      EXPECT_EQ(stats.parameters.at(stats.report.buckets.at(0).parameters.at(0)), "weight");
    });
  }
}

/// By every plan in turn, whatever this machine's clock makes of it: nothing is lost, and the ranks agree to the bit.
TEST(Compressor, NothingIsLostWhileAutoChangesPlans) {
  constexpr int kSteps = 70;
  std::vector<at::Tensor> sums(2);
  std::vector<std::map<std::string, at::Tensor>> left(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "auto:sign");
    at::Tensor& sum = sums[static_cast<std::size_t>(rank)];
    sum = at::zeros({kCount + 64}, at::kDouble);
    for (int step = 0; step < kSteps; ++step) {
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, step);
      compressor.reduce(bucket, kSlots);
      sum += bucket;
    }
    EXPECT_GT(compressor.auto_stats()->report.measured_steps, 9U);
    left[static_cast<std::size_t>(rank)] = copy(compressor.residuals());
  });
  EXPECT_TRUE(at::equal(sums[0], sums[1]));
  at::Tensor expected = at::zeros({kCount + 64}, at::kDouble);
  for (int step = 0; step < kSteps; ++step) expected += (bucket_of(0, step) + bucket_of(1, step)) / 2;
  at::Tensor difference = (expected - sums[0]).narrow(0, 0, kCount);
  if (left[0].contains("worker/weight")) difference -= owed(left, kCount);
  EXPECT_LT(difference.abs().max().item<double>(), 0.1);  // bf16 rounds, and so do residuals
  EXPECT_LT((expected - sums[0]).narrow(0, kCount, 64).abs().max().item<double>(), 1e-4);
}

TEST(Compressor, AutoSendsWhatIsOwedBeforeItIsDense) {
  std::vector<std::map<std::string, at::Tensor>> before(2);
  std::vector<at::Tensor> results(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    auto& owed_before = before[static_cast<std::size_t>(rank)];
    owed_before = copy(compressor.residuals());
    compressor.set_plan(Plan::parse("auto"));

    compressor.begin_step();  // rolled back: it is owed still
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(INFINITY);
    compressor.reduce(bad, kSlots);
    expect_equal(compressor.residuals(), owed_before);
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 1), kSlots);
    compressor.abandon_step();
    expect_equal(compressor.residuals(), owed_before);

    compressor.begin_step();
    at::Tensor& result = results[static_cast<std::size_t>(rank)];
    result = bucket_of(rank, 2);
    compressor.reduce(result, kSlots);
    EXPECT_TRUE(compressor.residuals().empty());
    compressor.begin_step();
    at::Tensor next = bucket_of(rank, 3);  // it may go by bf16
    compressor.reduce(next, kSlots);
    EXPECT_TRUE(at::allclose(next, (bucket_of(0, 3) + bucket_of(1, 3)) / 2, 0.01, 0.01));
  });
  const at::Tensor average = (bucket_of(0, 2) + bucket_of(1, 2)) / 2;
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::allclose((results[0] - average).narrow(0, 0, kCount), owed(before, kCount), 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(results[0].narrow(0, kCount, 64), average.narrow(0, kCount, 64)));
}

TEST(Compressor, AutoHasRulesAndNeedsGradientsAndOtherRanks) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "auto;weight=int8+ef");
    for (int step = 0; step < 4; ++step) {
      compressor.begin_step();
      compressor.reduce(bucket_of(rank, step), kSlots);
      EXPECT_EQ(compressor.parameter_stats()[0].plan, "int8+ef");
    }
    const std::map<std::string, Compressor::Momentum> momenta = {{"weight", {at::zeros({kCount}), at::ones({kCount})}}};
    EXPECT_THROW(compressor.set_momentum(momenta, 0.9), Error);
    compressor.set_plan(Plan::parse("int4+ef"));
    EXPECT_FALSE(compressor.auto_stats());
    compressor.set_momentum(momenta, 0.9);
    EXPECT_THROW(compressor.set_plan(Plan::parse("auto")), Error);
    EXPECT_EQ(compressor.plan().text(), "int4+ef");
  });
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "auto");
    compressor.begin_step();
    compressor.reduce(bucket_of(0, 0), kSlots);
    EXPECT_FALSE(compressor.auto_stats());
  });
}

TEST(Compressor, EveryStepAndParameterDrawsItsOwnRounding) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto residual_at = [&](std::uint64_t step, std::size_t parameter) {
      Compressor compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                            Plan::parse("sign+ef"),
                            {{"a", kCount, false}, {"b", kCount, false}}};
      compressor.set_step(step);
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, 0).narrow(0, 0, kCount).clone();
      compressor.reduce(bucket, {{parameter, 0}});
      return compressor.residuals().at(parameter == 0 ? "worker/a" : "worker/b").clone();
    };
    EXPECT_TRUE(at::equal(residual_at(7, 0), residual_at(7, 0)));
    EXPECT_FALSE(at::equal(residual_at(7, 0), residual_at(8, 0)));
    EXPECT_FALSE(at::equal(residual_at(7, 0), residual_at(7, 1)));
  });
}

}  // namespace

}  // namespace octavo
