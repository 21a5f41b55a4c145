// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/cpp/compressor_steps.h"

/// Gradients of another dtype than float32 give the same codes as in float32, bit by bit, and results are rounded to
/// their dtype. This holds for codecs that take them part by part and for those that need all of them in float32.
namespace octavo {

namespace {

using compressor_steps::expect_equal;

// The large tensor's power is sampled, the small one's is measured; the exempt one is sent as it is.
constexpr std::int64_t kLarge = 70'008, kSmall = 300, kExempt = 64;
constexpr int kSteps = 3;

Compressor make_compressor(const thread_ranks::BackendPtr& backend, const char* plan) {
  return Compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                    Plan::parse(plan),
                    {{"large", kLarge, false, 12}, {"small", kSmall, false}, {"norm", kExempt, true}}};
}

at::Tensor gradients(int rank, int step, at::ScalarType dtype) {
  const std::int64_t count = kLarge + kSmall + kExempt;
  const at::Tensor numbers = at::arange(count, at::kDouble) * (37 * (rank + 1)) + 11 * step;
  at::Tensor values = at::remainder(numbers, 1009) / 504.5 - 1;
  if (step == 1) values.slice(0, kLarge, kLarge + kSmall).zero_();
  return values.to(dtype);
}

struct Trace {
  std::vector<at::Tensor> results;
  std::map<std::string, at::Tensor> state;
};

/// `dtype` is the dtype of the buckets, whose values were rounded to `rounded_to`.
std::vector<Trace> train(int world_size, const char* plan, at::ScalarType rounded_to, at::ScalarType dtype) {
  std::vector<Trace> traces(static_cast<std::size_t>(world_size));
  thread_ranks::run_ranks(world_size, [&](const thread_ranks::BackendPtr& backend, int rank) {
    Compressor compressor = make_compressor(backend, plan);
    Trace& trace = traces[static_cast<std::size_t>(rank)];
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor bucket = gradients(rank, step, rounded_to).to(dtype);
      compressor.begin_step();
      compressor.reduce(bucket, {{0, 0}, {1, kLarge}, {2, kLarge + kSmall}});
      trace.results.push_back(bucket);
    }
    compressor.begin_step();
    trace.state = compressor_steps::copy(compressor.state().tensors);
  });
  return traces;
}

}  // namespace

TEST(GradientDtypes, AreEncodedAsFloatsAre) {
  for (const char* plan : {"bf16", "int8+ef", "int4:stochastic+ef", "sign+ef", "sign-vote", "delta+int4", "topk:0.1+ef",
                           "int8+dgc", "powersgd:2+ef", "sign:128+ef;small=dense", "lsh:0.45:int4"}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const int world_size : {1, 3}) {
        SCOPED_TRACE(std::string(plan) + " " + toString(dtype) + " on " + std::to_string(world_size));
        const at::ScalarType rounded_to = dtype == at::kDouble ? at::kFloat : dtype;
        const std::vector<Trace> wanted = train(world_size, plan, rounded_to, at::kFloat);
        const std::vector<Trace> got = train(world_size, plan, rounded_to, dtype);
        for (std::size_t rank = 0; rank < got.size(); ++rank) {
          for (std::size_t step = 0; step < kSteps; ++step) {
            EXPECT_TRUE(at::equal(got[rank].results[step], wanted[rank].results[step].to(dtype)));
          }
          expect_equal(got[rank].state, wanted[rank].state);
        }
      }
    }
  }
}

TEST(GradientDtypes, WhatIsNotFiniteIsSeen) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    thread_ranks::run_ranks(2, [&](const thread_ranks::BackendPtr& backend, int rank) {
      Compressor compressor = make_compressor(backend, "int8+ef");
      at::Tensor bucket = gradients(rank, 0, dtype);
      if (rank == 1) bucket[kLarge - 1] = std::numeric_limits<float>::quiet_NaN();
      compressor.begin_step();
      compressor.reduce(bucket, {{0, 0}, {1, kLarge}, {2, kLarge + kSmall}});
      compressor.begin_step();
      EXPECT_EQ(compressor.stats().nonfinite_steps, 1U);
    });
  }
}

/// Averages are computed in float32. float16 may not have the results, and what was left out would be lost with them.
TEST(GradientDtypes, AResultThatItsDtypeDoesNotHaveIsSeen) {
  for (const Collective collective : {Collective::all_reduce, Collective::reduce_to_owners}) {
    for (const double divisor : {2.0, 1.0}) {
      thread_ranks::run_ranks(2, [&](const thread_ranks::BackendPtr& backend, int) {
        Compressor compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                              Plan::parse("int8+ef"),
                              {{"large", kLarge, false, 12}},
                              {.collective = collective}};
        const at::Tensor bucket = at::full({kLarge}, 40'000, at::kHalf);
        compressor.begin_step();
        compressor.reduce(bucket, {{0, 0}}, divisor);
        EXPECT_EQ(compressor.end_step(), divisor == 2.0);
        EXPECT_EQ(compressor.stats().nonfinite_steps, divisor == 2.0 ? 0U : 1U);
      });
    }
  }
}

}  // namespace octavo
