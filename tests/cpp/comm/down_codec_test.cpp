// SPDX-License-Identifier: Apache-2.0
// Plans with a codec of their own for what owners send to all ranks: `int4+down:int8`.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/ownership.h"
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

/// Returns what receivers decode of values that are encoded together.
at::Tensor decoded_of(const char* codec, const at::Tensor& values) {
  const CodecPtr coding = make_codec(codec);
  const auto count = static_cast<std::uint64_t>(values.numel());
  std::vector<std::uint8_t> payload(coding->payload_bytes(count) + 4);
  at::Tensor decoded = at::empty_like(values);
  const PayloadPart whole = {payload.data(), count, {0, count}};
  coding->encode(c10::kCPU, {values.const_data_ptr<float>()}, whole, nullptr);
  coding->decode(c10::kCPU, whole, Store::assign, decoded.mutable_data_ptr<float>(), nullptr);
  return decoded;
}

/// Returns the average of the weights of all ranks' buckets, computed range by range.
at::Tensor by_reference(const char* up, const char* down, int world, int step) {
  at::Tensor result = at::empty({kCount});
  for (int owner = 0; owner < world; ++owner) {
    const Range own = owned_range(kCount, owner, world);
    const auto part = [&](const at::Tensor& all) {
      return all.narrow(0, static_cast<std::int64_t>(own.first), static_cast<std::int64_t>(own.count));
    };
    at::Tensor others = at::zeros({static_cast<std::int64_t>(own.count)});
    for (int rank = 0; rank < world; ++rank) {
      if (rank != owner) others += decoded_of(up, part(bucket_of(rank, step)).contiguous());
    }
    const at::Tensor mean = (part(bucket_of(owner, step)) + others) * (1.0F / static_cast<float>(world));
    part(result).copy_(world == 1 ? mean : decoded_of(down, mean));  // a rank alone encodes nothing
  }
  return result;
}

TEST(DownCodec, AResultIsThatOfTheTwoCodecsOneAfterTheOther) {
  struct Ways {
    const char *up, *down;
  };
  for (const Ways ways :
       {Ways{"int4", "int8"}, Ways{"topk:0.1", "int8"}, Ways{"topk:64/1024:sign", "bf16"}, Ways{"sign:24", "topk:0.3"},
        Ways{"dense", "int4"}, Ways{"fp8", "dense"}, Ways{"int8:128", "int8"}}) {
    const std::string plan = std::string(ways.up) + "+down:" + ways.down;
    for (const int world : {1, 2, 3, 4}) {
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        Compressor compressor = make(backend, plan.c_str());
        for (int step = 0; step < 2; ++step) {
          at::Tensor bucket = bucket_of(rank, step);
          compressor.begin_step();
          compressor.reduce(bucket, kSlots);
          EXPECT_TRUE(at::equal(bucket.narrow(0, 0, kCount), by_reference(ways.up, ways.down, world, step)))
              << plan << " of " << world;
        }
      });
    }
  }
}

TEST(DownCodec, AResidualIsKeptWhereAWayLeavesAnError) {
  struct Case {
    const char* plan;
    std::vector<std::string> keys;
  };
  for (const Case& c : {Case{"int4+down:int8+ef", {"owner/weight", "worker/weight"}},
                        Case{"int4+down:dense+ef", {"worker/weight"}}, Case{"dense+down:int4+ef", {"owner/weight"}}}) {
    std::vector<at::Tensor> sums = {at::zeros({kCount}), at::zeros({kCount})};
    std::vector<std::map<std::string, at::Tensor>> world(2);
    constexpr int kSteps = 40;
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(backend, c.plan);
      for (int step = 0; step < kSteps; ++step) {
        at::Tensor bucket = bucket_of(rank, 0);
        compressor.begin_step();
        compressor.reduce(bucket, kSlots);
        sums[static_cast<std::size_t>(rank)] += bucket.narrow(0, 0, kCount);
      }
      world[static_cast<std::size_t>(rank)] = copy(compressor.state().tensors);
    });
    EXPECT_TRUE(at::equal(sums[0], sums[1])) << "replicas differ";
    for (auto& kept : world) {
      std::vector<std::string> keys;
      for (const auto& [key, tensor] : kept) keys.push_back(key);
      EXPECT_EQ(keys, c.keys) << c.plan;
      for (const char* key : {"worker/weight", "owner/weight"}) kept.emplace(key, at::zeros({kCount / 2}));
    }
    const at::Tensor wanted = (bucket_of(0, 0) + bucket_of(1, 0)).narrow(0, 0, kCount) / 2 * kSteps;
    const at::Tensor accounted = sums[0] + owed(world, kCount);
    EXPECT_LT((accounted - wanted).abs().max().item<double>(), 0.05) << c.plan << ": what was sent and what is owed";
  }
}

/// Changes from a plan with residuals both ways to one that is exact one way: what is owed there is sent.
TEST(DownCodec, WhatAnEarlierPlanLeftIsSentByAWayWithoutErrors) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    at::Tensor sum = at::zeros({kCount});
    for (int step = 0; step < 6; ++step) {
      if (step == 2) compressor.set_plan(Plan::parse("sign+down:dense+ef"));
      if (step == 4) compressor.set_plan(Plan::parse("dense+down:int8+ef"));
      at::Tensor bucket = bucket_of(rank, 0);
      compressor.begin_step();
      compressor.reduce(bucket, kSlots);
      sum += bucket.narrow(0, 0, kCount);
      const auto kept = compressor.state().tensors;
      if (step < 2) continue;
      const char* const exact = step < 4 ? "owner/weight" : "worker/weight";
      EXPECT_EQ(kept.at(exact).abs().max().item<float>(), 0.0F);
    }
    const at::Tensor wanted = (bucket_of(0, 0) + bucket_of(1, 0)).narrow(0, 0, kCount) / 2 * 6;
    EXPECT_LT((sum - wanted).abs().max().item<double>(), 0.1);
  });
}

TEST(DownCodec, StateSavedAndLoadedGoesOnWithTheSameBits) {
  for (const char* plan : {"int4+down:int8:stochastic+ef", "sign+down:dense+ef", "topk:0.05+down:int4+dgc",
                           "int4+down:topk:0.1+ef21", "topk:0.05+down:int8+ef+warmup:4"}) {
    for (const int world : {1, 2, 3, 4}) {
      std::vector<at::Tensor> results(static_cast<std::size_t>(world));
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        Compressor original = make(backend, plan), resumed = make(backend, plan);
        for (int step = 0; step < 3; ++step) {
          original.begin_step();
          original.reduce(bucket_of(rank, step), kSlots);
        }
        resumed.load_state(copy(original.state()));
        for (int step = 3; step < 6; ++step) {
          at::Tensor a = bucket_of(rank, step), b = bucket_of(rank, step);
          original.begin_step();
          original.reduce(a, kSlots);
          resumed.begin_step();
          resumed.reduce(b, kSlots);
          EXPECT_TRUE(at::equal(a, b)) << plan;
          results[static_cast<std::size_t>(rank)] = a;
        }
        expect_equal(original.state().tensors, resumed.state().tensors);
      });
      for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0])) << plan << " of " << world;
    }
  }
}

TEST(DownCodec, RanksWithAnotherCodecDownAreTold) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, rank == 0 ? "int4+down:sign2:64" : "int4+down:ternary:64");
    at::Tensor bucket = bucket_of(rank, 0);
    compressor.begin_step();
    try {
      compressor.reduce(bucket, kSlots);
      ADD_FAILURE() << "rank " << rank << " averaged what does not belong together";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication) << error.what();
    }
  });
}

TEST(DownCodec, ASingleCallHasItToo) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    at::Tensor values = bucket_of(rank, 0).narrow(0, 0, kCount).clone();
    all_reduce(values, Plan::parse("int4+down:int8"), backend, ReduceOp::average, std::chrono::seconds(20));
    EXPECT_TRUE(at::equal(values, by_reference("int4", "int8", 2, 0)));
    at::Tensor other = bucket_of(rank, 0);
    const Plan plan = Plan::parse(rank == 0 ? "int4+down:sign2:64" : "int4+down:ternary:64");
    EXPECT_THROW(all_reduce(other, plan, backend, ReduceOp::average, std::chrono::seconds(20)), Error);
  });
}

TEST(DownCodec, BytesAreThoseOfBothWays) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "int4+down:int8");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    const std::uint64_t half = kCount / 2, int4_bytes = half / 2 + half / 64 * 4, int8_bytes = half + half / 256 * 4;
    EXPECT_EQ(compressor.parameter_stats()[0].wire_bytes, int4_bytes + int8_bytes);
    // a header each way, the powers of two gradients, and 64 exempt values that one rank owns
    EXPECT_EQ(compressor.stats().wire_bytes, int4_bytes + int8_bytes + 2 * 16 + 2 * 4 + 4 * 64);
  });
}

}  // namespace

}  // namespace octavo
