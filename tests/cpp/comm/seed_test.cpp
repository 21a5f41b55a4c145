// SPDX-License-Identifier: Apache-2.0
// The seed of a run, from which compressors draw.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/parameter_info.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"
#include "tests/cpp/compressor_steps.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using compressor_steps::bucket_of;
using compressor_steps::copy;
using compressor_steps::expect_equal;
using compressor_steps::kCount;
using compressor_steps::kSlots;
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr auto kSeedTimeout = std::chrono::milliseconds(20000);

/// Returns a compressor of two parameters, one of them a matrix.
std::unique_ptr<Compressor> seeded(const BackendPtr& backend, const char* plan, std::uint64_t seed) {
  const std::vector<ParameterInfo> parameters = {{"weight", kCount, false, /*rows=*/64}, {"norm", 64, true}};
  return std::make_unique<Compressor>(std::make_unique<Wire>(backend, kSeedTimeout), Plan::parse(plan), parameters,
                                      CompressorOptions{.seed = seed});
}

/// Returns the results of rank 0.
std::vector<at::Tensor> seeded_results(const char* plan, std::uint64_t seed, int steps) {
  std::vector<at::Tensor> results;
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto compressor = seeded(backend, plan, seed);
    for (int step = 0; step < steps; ++step) {
      at::Tensor bucket = bucket_of(rank, step);
      compressor->begin_step();
      compressor->reduce(bucket, kSlots);
      if (rank == 0) results.push_back(bucket);
    }
  });
  return results;
}

TEST(Seed, AnotherOneDrawsOtherwiseAndTheSameOneAlike) {
  for (const char* plan : {"int8:stochastic", "randomk:1/16", "sketch:0.1", "sketch:0.1+ef", "powersgd:4", "sign+ef"}) {
    // with sign+ef, only residuals are rounded by random bits
    const int steps = std::string(plan) == "sign+ef" ? 3 : 1;
    const at::Tensor first = seeded_results(plan, 1, steps).back();
    EXPECT_TRUE(at::equal(first, seeded_results(plan, 1, steps).back())) << plan;
    EXPECT_FALSE(at::equal(first, seeded_results(plan, 2, steps).back())) << plan;
    EXPECT_FALSE(at::equal(first, seeded_results(plan, 0, steps).back())) << plan;
  }
}

/// Runs without a seed have always drawn from these keys.
TEST(Seed, OfSeedZeroTheKeysAreThoseOfStepParameterAndRank) {
  const CodecPtr codec = make_codec("int8:stochastic");
  for (const std::uint64_t seed : {0, 5}) {
    const at::Tensor got = seeded_results("int8:stochastic", seed, 1)[0];
    constexpr std::uint64_t kStep = 1, kParameter = 0, kHalf = kCount / 2;
    const auto sent_by = [&](at::Tensor values, std::uint64_t rank, std::uint64_t way, std::uint64_t first) {
      const std::uint64_t key = kStep << 32U | kParameter << 12U | rank;
      EncodeInput input{values.const_data_ptr<float>()};
      input.rounding_key = rules::derive_key(seed == 0 ? key : rules::derive_key(key, seed), way);
      input.first = first;
      std::vector<std::uint32_t> payload(codec->payload_bytes(kHalf) / 4 + 1);
      const PayloadPart whole = {reinterpret_cast<std::uint8_t*>(payload.data()), kHalf, {0, kHalf}};
      codec->encode(c10::kCPU, input, whole, nullptr);
      codec->decode(c10::kCPU, whole, Store::assign, values.mutable_data_ptr<float>(), nullptr);
      return values;
    };
    for (const std::uint64_t owner : {0, 1}) {
      const std::uint64_t first = owner * kHalf;
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(kHalf)).clone();
      };
      const int sender = owner == 0 ? 1 : 0;
      const at::Tensor up = sent_by(part(bucket_of(sender, 0)), static_cast<std::uint64_t>(sender), 0, first);
      const at::Tensor mean = (part(bucket_of(static_cast<int>(owner), 0)) + up) * 0.5F;
      EXPECT_TRUE(at::equal(part(got), sent_by(mean, owner, 1, first))) << "seed " << seed << ", owner " << owner;
    }
  }
}

TEST(Seed, RanksOfRunsWithOtherSeedsAreTold) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto compressor = seeded(backend, "int4+ef", rank == 0 ? 3 : 4);
    at::Tensor bucket = bucket_of(rank, 0);
    compressor->begin_step();
    try {
      compressor->reduce(bucket, kSlots);
      ADD_FAILURE() << "rank " << rank << " averaged what does not belong together";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication);
      EXPECT_NE(std::string(error.what()).find("the same plan, model, seed and checkpoint"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(at::equal(bucket, bucket_of(rank, 0)));
  });
}

TEST(Seed, AStateGoesOnWithItsSeed) {
  for (const char* plan : {"int8:stochastic+ef", "sketch:0.1+ef"}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      const auto original = seeded(backend, plan, 7), resumed = seeded(backend, plan, 0);
      for (int step = 0; step < 2; ++step) {
        original->begin_step();
        original->reduce(bucket_of(rank, step), kSlots);
      }
      resumed->load_state(copy(original->state()));
      at::Tensor a = bucket_of(rank, 2), b = bucket_of(rank, 2);
      original->begin_step();
      original->reduce(a, kSlots);
      resumed->begin_step();
      resumed->reduce(b, kSlots);
      EXPECT_TRUE(at::equal(a, b)) << plan;
      expect_equal(original->state().tensors, resumed->state().tensors);
    });
  }
}

TEST(Seed, ASingleCallDrawsFromItToo) {
  const auto sum_of = [](std::uint64_t first_seed, std::uint64_t second_seed) {
    at::Tensor sum;
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      at::Tensor values = bucket_of(rank, 0);
      all_reduce(values, Plan::parse("randomk:1/16"), backend, ReduceOp::sum, kSeedTimeout, 1,
                 rank == 0 ? first_seed : second_seed);
      if (rank == 0) sum = values;
    });
    return sum;
  };
  EXPECT_TRUE(at::equal(sum_of(1, 1), sum_of(1, 1)));
  EXPECT_FALSE(at::equal(sum_of(1, 1), sum_of(2, 2)));
  EXPECT_THROW(sum_of(1, 2), Error);
}

}  // namespace

}  // namespace octavo
