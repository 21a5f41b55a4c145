// SPDX-License-Identifier: Apache-2.0
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

constexpr double kBeta = 0.5, kStepSize = 0.25;

void keep_updates(Compressor& compressor) {
  compressor.keep_own_updates({{"weight", at::full({kCount}, 2.0F)}, {"norm", at::full({64}, 2.0F)}}, kBeta);
  compressor.set_step_sizes({{"weight", kStepSize}, {"norm", kStepSize}});
}

bool run_step(Compressor& compressor, const at::Tensor& bucket) {
  compressor.begin_step();
  compressor.reduce(bucket, kSlots);
  return compressor.end_step();
}

TEST(CompressorUpdates, AStepThatSendsNothingLeavesGradientsAndResidualsAlone) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    EXPECT_TRUE(run_step(compressor, bucket_of(rank, 0)));
    const auto before = copy(compressor.state().tensors);
    const CompressorStats sent = compressor.stats();
    compressor.set_exchange(Exchange::nothing);
    at::Tensor bucket = bucket_of(rank, 1);
    EXPECT_TRUE(run_step(compressor, bucket));
    EXPECT_TRUE(at::equal(bucket, bucket_of(rank, 1)));
    if (rank == 1) bucket[3].fill_(std::nanf(""));
    EXPECT_EQ(run_step(compressor, bucket), rank != 1);
    expect_equal(compressor.state().tensors, before);
    EXPECT_EQ(compressor.stats().wire_bytes, sent.wire_bytes);
    EXPECT_GT(compressor.stats().dense_bytes, sent.dense_bytes);
    EXPECT_EQ(compressor.stats().nonfinite_steps, rank == 1 ? 1U : 0U);
  });
}

TEST(CompressorUpdates, GradientsPassByThePlanAndWhatItRemembers) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    keep_updates(compressor);
    EXPECT_TRUE(run_step(compressor, bucket_of(rank, 0)));
    const auto before = copy(compressor.state().tensors);
    EXPECT_EQ(before.size(), 6U);  // two residuals of `weight`; a momentum and an update of both parameters
    compressor.set_exchange(Exchange::gradients);
    at::Tensor bucket = bucket_of(rank, 1);
    EXPECT_TRUE(run_step(compressor, bucket));
    EXPECT_TRUE(at::allclose(bucket, (bucket_of(0, 1) + bucket_of(1, 1)) / 2));
    expect_equal(compressor.state().tensors, before);
  });
}

TEST(CompressorUpdates, UpdatesBecomeTheirAverageOnceTheStepHasEndedFinite) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "dense");
    keep_updates(compressor);
    const auto own = [&] { return compressor.own_updates().at("weight"); };
    own().update.fill_(rank);
    own().momentum.fill_(4 * rank);
    at::Tensor bad = bucket_of(rank, 0);
    if (rank == 0) bad[kCount + 1].fill_(INFINITY);
    EXPECT_FALSE(run_step(compressor, bad));
    EXPECT_TRUE(at::equal(own().update, at::full({kCount}, rank, at::kFloat))) << "rolled back, with the other bucket";

    at::Tensor bucket = bucket_of(rank, 1);
    EXPECT_TRUE(run_step(compressor, bucket));
    // the mean of update + step_size * (beta * momentum + (1 - beta) * 2 * gradient)
    const at::Tensor gradients = (bucket_of(0, 1) + bucket_of(1, 1)).narrow(0, 0, kCount) / 2;
    EXPECT_TRUE(at::allclose(own().update, 0.5 + kStepSize * (kBeta * 2 + (1 - kBeta) * 2 * gradients)));
    EXPECT_TRUE(at::equal(own().update, bucket.narrow(0, 0, kCount)));
    EXPECT_TRUE(at::equal(own().momentum, at::full({kCount}, 4 * rank, at::kFloat))) << "is for its owner to change";

    own().update.fill_(rank);
    EXPECT_TRUE(compressor.exchange_updates());
    EXPECT_TRUE(at::equal(own().update, at::full({kCount}, 0.5F)));
    own().update.fill_(rank);
    compressor.set_exchange(Exchange::nothing);
    EXPECT_TRUE(compressor.exchange_updates());
    EXPECT_TRUE(at::equal(own().update, at::full({kCount}, 0.5F)));
    EXPECT_EQ(compressor.exchange(), Exchange::nothing) << "that of gradients stays";
    compressor.set_exchange(Exchange::planned);
    compressor.keep_own_updates({}, kBeta);
    EXPECT_TRUE(compressor.state().tensors.empty());
  });
}

TEST(CompressorUpdates, TheLossScaleIsTakenOut) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor plain = make(backend, "int4+ef");
    keep_updates(plain);
    at::Tensor bucket = bucket_of(rank, 0);
    EXPECT_TRUE(run_step(plain, bucket));
    Compressor scaled = make(backend, "int4+ef");
    keep_updates(scaled);
    // the ranks' scales differ after a step that only one rank has skipped
    scaled.set_gradient_scale(rank == 0 ? 1024 : 256);
    at::Tensor larger = bucket_of(rank, 0) * (rank == 0 ? 1024 : 256);
    EXPECT_TRUE(run_step(scaled, larger));
    EXPECT_TRUE(at::equal(larger, bucket * (rank == 0 ? 1024 : 256)));
    expect_equal(scaled.state().tensors, plain.state().tensors);
  });
}

TEST(CompressorUpdates, WhatMakesNoSenseIsRefused) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "sign+ef");
    EXPECT_THROW(compressor.keep_own_updates({{"other", at::ones({kCount})}}, kBeta), Error);
    EXPECT_THROW(compressor.keep_own_updates({{"weight", at::ones({3})}}, kBeta), Error);
    EXPECT_THROW(compressor.keep_own_updates({{"weight", at::ones({kCount})}}, 1.0), Error);
    EXPECT_THROW(compressor.set_step_sizes({{"weight", 1.0}}), Error);
    Compressor votes = make(backend, "sign-vote");
    EXPECT_THROW(votes.keep_own_updates({{"weight", at::ones({kCount})}}, kBeta), Error);
    EXPECT_TRUE(votes.exchange_updates()) << "of nothing";
  });
}

}  // namespace

}  // namespace octavo
