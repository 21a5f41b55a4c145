// SPDX-License-Identifier: Apache-2.0
// Compressor: the momenta that ranks keep of their own gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "octavo/comm/compressor.h"
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
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

/// A rank's own momentum after some gradients of bucket_of, and the update that the rank sent last.
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
      const auto state = compressor.state().tensors;
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
    const auto before = copy(compressor.state().tensors);
    EXPECT_EQ(before.size(), 1U);
    compressor.set_plan(Plan::parse("int4"));
    compressor.drop_residuals();
    compressor.keep_own_momenta({"weight"}, {0.9, 0.99});
    expect_equal(compressor.state().tensors, before);
    compressor.keep_own_momenta({}, {0.9, 0.99});
    EXPECT_TRUE(compressor.state().tensors.empty());
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
    const auto before = copy(compressor.state().tensors);
    compressor.begin_step();
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(std::nanf(""));
    compressor.reduce(bad, kSlots);
    EXPECT_FALSE(at::isfinite(bad).all().item<bool>());
    expect_equal(compressor.state().tensors, before);
  });
}

/// Where a momentum cancels the gradient exactly, nothing is sent, and the momentum changes nevertheless.
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
    EXPECT_TRUE(at::equal(compressor.state().tensors.at("momentum/weight"), at::zeros({kCount})));
  });
}

}  // namespace

}  // namespace octavo
