// SPDX-License-Identifier: Apache-2.0
// What OnePhase does beyond ScatterSum, as a Compressor uses it; `reduce_scatter_test.cpp` has FSDP2's layout.
#include "octavo/comm/schedule/one_phase.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "octavo/comm/compressor.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/parameter_info.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr std::int64_t kRowsOfWeight = 32, kColumnsOfWeight = 64;

struct OnePhaseCase {
  const char* plan;
  at::ScalarType dtype;
  Collective collective;
};

class OnePhaseOfZeros : public ::testing::TestWithParam<OnePhaseCase> {};

/// Returns what this rank gets of its own rows for a gradient. The bucket lies in the order of the owners.
at::Tensor step(Compressor& compressor, const at::Tensor& gradient, int rank) {
  at::Tensor bucket = gradient.clone();
  compressor.begin_step();
  compressor.reduce(bucket, {{0, 0}});
  compressor.end_step();
  return bucket.view({2, -1})[rank];
}

TEST_P(OnePhaseOfZeros, AGradientThatIsZeroOnAllRanksStaysZeroAndPaysNoDebt) {
  const OnePhaseCase c = GetParam();
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const std::int64_t count = kRowsOfWeight * kColumnsOfWeight;
    const std::vector<ParameterInfo> table = {
        {"weight", static_cast<std::uint64_t>(count), false, kRowsOfWeight, Ownership::rows(kColumnsOfWeight)}};
    Compressor compressor(std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)), Plan::parse(c.plan), table,
                          CompressorOptions{.collective = c.collective});
    const at::Tensor gradient = at::sin(at::arange(count, at::kFloat) * (rank + 1)).to(c.dtype);
    EXPECT_TRUE(step(compressor, gradient, rank).any().item<bool>());
    const auto owed = compressor.state().tensors;
    for (int again = 0; again < 2; ++again) {
      EXPECT_FALSE(step(compressor, at::zeros_like(gradient), rank).any().item<bool>());
    }
    for (const auto& [name, tensor] : compressor.state().tensors) EXPECT_TRUE(at::equal(tensor, owed.at(name))) << name;
  });
}

std::vector<OnePhaseCase> all_cases() {
  std::vector<OnePhaseCase> cases;
  for (const char* plan : {"sign+ef", "int4+ef", "topk:0.05+ef", "int8:64"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto collective : {Collective::reduce_scatter, Collective::reduce_to_owners}) {
        cases.push_back({plan, dtype, collective});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Plans, OnePhaseOfZeros, ::testing::ValuesIn(all_cases()));

}  // namespace

}  // namespace octavo
