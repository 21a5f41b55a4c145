// SPDX-License-Identifier: Apache-2.0
// Compressor and FsdpHook where every rank keeps a shard of the averages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "octavo/comm/compressor.h"
#include "octavo/comm/fsdp_hook.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/parameter_info.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr std::int64_t kWeightRows = 35, kWeightColumns = 70, kBias = 33;

std::shared_ptr<Compressor> scattering(const BackendPtr& backend, const char* plan) {
  const std::vector<ParameterInfo> parameters = {
      {"weight", kWeightRows * kWeightColumns, false, kWeightRows, Ownership::rows(kWeightColumns)},
      {"bias", kBias, true, 1, Ownership::rows(1)}};
  return std::make_shared<Compressor>(std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                                      Plan::parse(plan), parameters,
                                      CompressorOptions{.collective = Collective::reduce_scatter});
}

/// Returns a rank's gradients: of the weight, then of the bias.
std::vector<at::Tensor> gradients_of(int rank) {
  const auto values = [&](at::IntArrayRef shape, int seed) {
    const at::Tensor flat = at::arange(at::empty(shape).numel(), at::kFloat) * (37 * (rank + 1)) + seed;
    return (at::remainder(flat, 101) / 50.5 - 1).view(shape);
  };
  return {values({kWeightRows, kWeightColumns}, 3), values({kBias}, 5)};
}

/// Returns the bucket in FSDP2's layout: for each rank its rows of all tensors, one tensor after another, then zeros.
at::Tensor bucket_of(const std::vector<at::Tensor>& tensors, int world) {
  at::Tensor bucket;
  std::int64_t shard = 0;
  for (const at::Tensor& tensor : tensors) shard += (tensor.size(0) + world - 1) / world * tensor[0].numel();
  bucket = at::empty({world, shard});
  at::_chunk_cat_out(bucket, tensors, 0, world);
  return bucket.view(-1);
}

TEST(ReduceScatter, RowsAreOwnedAsTorchChunksThem) {
  for (const std::int64_t rows : {1, 2, 5, 35, 64}) {
    const at::Tensor all = at::arange(rows * 7).view({rows, 7});
    for (const int world : {1, 2, 3, 4, 8}) {
      const auto chunks = all.chunk(world);
      for (int rank = 0; rank < world; ++rank) {
        const Range own = owned_range(static_cast<std::uint64_t>(rows * 7), rank, world, Ownership::rows(7));
        const auto index = static_cast<std::size_t>(rank);
        ASSERT_EQ(own.count, index < chunks.size() ? static_cast<std::uint64_t>(chunks[index].numel()) : 0U);
        if (own.count > 0) {
          EXPECT_EQ(static_cast<std::int64_t>(own.first), chunks[index][0][0].item<std::int64_t>());
        }
      }
    }
  }
}

TEST(ReduceScatter, EveryRankGetsTheAveragesOfItsRowsAndPaddingStaysZero) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      std::vector<at::Tensor> sums = gradients_of(0);
      for (int other = 1; other < world; ++other) {
        for (std::size_t t = 0; t < sums.size(); ++t) sums[t] += gradients_of(other)[t];
      }
      for (at::Tensor& sum : sums) sum /= world;
      const at::Tensor expected = bucket_of(sums, world).view({world, -1})[rank];
      const auto compressor = scattering(backend, "int8:64");
      const at::Tensor bucket = bucket_of(gradients_of(rank), world);
      const auto shard = static_cast<std::uint64_t>((kWeightRows + world - 1) / world * kWeightColumns);
      compressor->begin_step();
      compressor->reduce(bucket, {{0, 0}, {1, shard}});
      const at::Tensor got = bucket.view({world, -1})[rank];
      EXPECT_TRUE(at::allclose(got, expected, 0, 0.01)) << "world " << world << " rank " << rank;
      const auto bias = static_cast<std::int64_t>(shard);
      EXPECT_TRUE(at::allclose(got.slice(0, bias), expected.slice(0, bias), 1e-6, 1e-7)) << "sent in float32";
      const at::Tensor ones = bucket_of({at::ones({kWeightRows, kWeightColumns}), at::ones({kBias})}, world);
      EXPECT_TRUE(at::masked_select(got, ones.view({world, -1})[rank] == 0).eq(0).all().item<bool>()) << "padding";
    });
  }
}

TEST(ReduceScatter, TheTimeOfBucketsIsCountedUnderAnyPlan) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    for (const char* plan : {"dense", "int8:64"}) {
      const auto compressor = scattering(backend, plan);
      compressor->begin_step();
      compressor->reduce(bucket_of(gradients_of(rank), 2), {{0, 0}, {1, 18 * kWeightColumns}});
      const PhaseSeconds seconds = compressor->stats().seconds;
      EXPECT_GT(seconds.encode, 0) << plan;
      EXPECT_GT(seconds.wait_up, 0) << plan;
      EXPECT_GT(seconds.decode, 0) << plan;
    }
  });
}

TEST(ReduceScatter, WhatWasSentAndWhatIsOwedAddUpToTheGradients) {
  constexpr int kWorld = 3;
  std::vector<at::Tensor> results(kWorld), owed(kWorld);
  run_ranks(kWorld, [&](const BackendPtr& backend, int rank) {
    const auto compressor = scattering(backend, "sign+ef");
    const at::Tensor bucket = bucket_of(gradients_of(rank), kWorld);
    compressor->begin_step();
    compressor->reduce(bucket, {{0, 0}, {1, 12 * kWeightColumns}}, 1.0);
    const auto residuals = compressor->state().tensors;
    EXPECT_EQ(residuals.size(), 1U) << "no owner's, none of what is exempt";
    const OthersRanges sent =
        others_ranges(kWeightRows * kWeightColumns, rank, kWorld, Ownership::rows(kWeightColumns));
    at::Tensor all = at::zeros({kWeightRows * kWeightColumns});
    for (std::int64_t i = 0; i < kWeightRows * kWeightColumns; ++i) {
      const auto element = static_cast<std::uint64_t>(i);
      if (element >= sent.own.first && element < sent.own.first + sent.own.count) continue;
      all[i] = residuals.at("worker/weight")[static_cast<std::int64_t>(sent.index(element))].item<float>();
    }
    owed[static_cast<std::size_t>(rank)] = all;
    const at::Tensor own = bucket.view({kWorld, -1})[rank].slice(0, 0, static_cast<std::int64_t>(sent.own.count));
    results[static_cast<std::size_t>(rank)] = own.clone();
  });
  const at::Tensor sum = gradients_of(0)[0] + gradients_of(1)[0] + gradients_of(2)[0];
  const at::Tensor accounted = at::cat(results) + owed[0] + owed[1] + owed[2];
  EXPECT_TRUE(at::allclose(accounted, sum.view(-1), 0, 0.02));
}

/// Only one rank has a value of each element.
TEST(ReduceScatter, AnAverageOverHitsCountsWhatOneRankSendsWhole) {
  for (const int world : {2, 3}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      const at::Tensor whole = at::arange(kWeightRows * kWeightColumns).remainder(200) + 1;
      const auto part_of = [&](int of_rank) {
        const at::Tensor numbers = at::arange(kWeightRows * kWeightColumns);
        return at::where(numbers.remainder(world) == of_rank, whole, 0).to(at::kFloat).view({kWeightRows, -1});
      };
      const auto reduced = [&](const char* plan, double divisor) {
        const auto compressor = scattering(backend, plan);
        const at::Tensor bucket = bucket_of({part_of(rank), at::ones({kBias})}, world);
        const auto shard = static_cast<std::uint64_t>((kWeightRows + world - 1) / world * kWeightColumns);
        compressor->begin_step();
        compressor->reduce(bucket, {{0, 0}, {1, shard}}, divisor);
        return bucket.view({world, -1})[rank].clone();
      };
      const at::Tensor expected =
          bucket_of({whole.to(at::kFloat).view({kWeightRows, -1}), at::ones({kBias})}, world).view({world, -1})[rank];
      EXPECT_TRUE(at::equal(reduced("topk:0.5+ef+hits", world), expected)) << "world " << world << " rank " << rank;
      const auto weight = static_cast<std::int64_t>(
          owned_range(static_cast<std::uint64_t>(whole.numel()), rank, world, Ownership::rows(kWeightColumns)).count);
      const at::Tensor over_ranks = reduced("topk:0.5+ef", world).slice(0, 0, weight);
      EXPECT_TRUE(at::allclose(over_ranks * world, expected.slice(0, 0, weight))) << "the factor is W";
      const at::Tensor sums = reduced("topk:0.5+ef+hits", 1).slice(0, 0, weight);
      EXPECT_TRUE(at::equal(sums, expected.slice(0, 0, weight) * world)) << "W times the average";
    });
  }
}

TEST(ReduceScatter, OverHitsWhatWasSentAndWhatIsOwedAddUpOfOwnRowsToo) {
  constexpr int kWorld = 3;
  run_ranks(kWorld, [&](const BackendPtr& backend, int rank) {
    const auto compressor = scattering(backend, "topk:0.05+ef+hits");
    const at::Tensor bucket = bucket_of(gradients_of(rank), kWorld);
    compressor->begin_step();
    compressor->reduce(bucket, {{0, 0}, {1, 12 * kWeightColumns}});
    const auto residuals = compressor->state().tensors;
    EXPECT_EQ(residuals.size(), 2U) << "worker and own";
    const OthersRanges sent =
        others_ranges(kWeightRows * kWeightColumns, rank, kWorld, Ownership::rows(kWeightColumns));
    const auto first = static_cast<std::int64_t>(sent.own.first), count = static_cast<std::int64_t>(sent.own.count);
    const at::Tensor own = gradients_of(rank)[0].view(-1).slice(0, first, first + count);
    const at::Tensor owed = residuals.at("own/weight").to(at::kFloat);
    const auto selected = static_cast<std::int64_t>(std::ceil(0.05 * static_cast<double>(count)));
    EXPECT_EQ(owed.eq(0).logical_and(own.ne(0)).sum().item<std::int64_t>(), selected) << "sent exactly";
    EXPECT_TRUE(at::allclose(owed, at::where(owed == 0, at::zeros({}), own), 0.01, 0)) << "the rest is owed";
  });
}

TEST(ReduceScatter, AnUnbiasedChoiceIsWeightedOnceThoughNothingGoesDown) {
  constexpr int kSteps = 400;
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto compressor = scattering(backend, "randomk:1/4:unbiased");
    at::Tensor mean = at::zeros({18 * kWeightColumns});
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor bucket = bucket_of({at::ones({kWeightRows, kWeightColumns}), at::ones({kBias})}, 2);
      compressor->begin_step();
      compressor->reduce(bucket, {{0, 0}, {1, 18 * kWeightColumns}});
      mean += bucket.view({2, -1})[rank].slice(0, 0, 18 * kWeightColumns) / kSteps;
    }
    const double own_rows = rank == 0 ? 18 : 17;
    EXPECT_NEAR(mean.sum().item<double>() / (own_rows * kWeightColumns), 1.0, 0.01);
  });
}

TEST(ReduceScatter, ACodecForTheWayDownChangesNothingWhereNothingGoesDown) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    const auto sums_by = [&](const char* plan) {
      const auto compressor = scattering(backend, plan);
      const at::Tensor bucket = bucket_of(gradients_of(rank), 3);
      compressor->begin_step();
      compressor->reduce(bucket, {{0, 0}, {1, 12 * kWeightColumns}});
      return std::pair(bucket, compressor->parameter_stats()[0].wire_bytes);
    };
    const auto [sums, bytes] = sums_by("int4+ef");
    const auto [same_sums, same_bytes] = sums_by("int4+down:sign+ef");
    EXPECT_TRUE(at::equal(sums, same_sums));
    EXPECT_EQ(bytes, same_bytes);
  });
}

TEST(ReduceScatter, RanksThatSeeFiniteShardsRollBackToo) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    const auto compressor = scattering(backend, "int4+ef");
    std::vector<at::Tensor> gradients = gradients_of(rank);
    if (rank == 1) gradients[0][30][3] = NAN;  // in a row that rank 2 owns
    const at::Tensor bucket = bucket_of(gradients, 3);
    compressor->begin_step();
    compressor->reduce(bucket, {{0, 0}, {1, 12 * kWeightColumns}});
    EXPECT_EQ(at::isfinite(bucket.view({3, -1})[rank]).all().item<bool>(), rank != 2);
    EXPECT_EQ(compressor->stats().nonfinite_steps, 1U);
    EXPECT_TRUE(compressor->state().tensors.empty());
  });
}

TEST(ReduceScatter, MomentaOfWholeParametersAreRefused) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    const auto compressor = scattering(backend, "sign+ef");
    EXPECT_THROW(compressor->keep_own_momenta({"weight"}, {0.9, 0.9}), Error);
    const at::Tensor whole = at::ones({kWeightRows * kWeightColumns});
    EXPECT_THROW(compressor->set_momentum({{"weight", {whole, whole}}}, 0.9), Error);
    compressor->set_momentum({}, 0);
  });
}

TEST(ReduceScatter, AParameterWithoutAGradientHasNoPlace) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto compressor = scattering(backend, "int8");
    FsdpHook hook(compressor, {{{0, 18 * kWeightColumns}, {1, 17}}});
    hook.mark(1);
    const std::vector<at::Tensor> bias = {gradients_of(rank)[1]};
    at::Tensor output = at::empty({17});
    hook.reduce_scatter(0, output, bucket_of(bias, 2), 2);
    const at::Tensor expected = bucket_of({(gradients_of(0)[1] + gradients_of(1)[1]) / 2}, 2).view({2, -1})[rank];
    EXPECT_TRUE(at::allclose(output, expected, 1e-6, 1e-7));
    for (int again = 0; again < 2; ++again) {  // the second call fails with the same sentence as the first
      try {
        hook.reduce_scatter(0, output, bucket_of(bias, 2), 2);
        FAIL() << "nothing was marked";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("let it use all of a group"), std::string::npos);
      }
    }
  });
}

}  // namespace

}  // namespace octavo
