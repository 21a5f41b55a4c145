// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/parameter_info.h"
#include "tests/cpp/ranks.h"

/// Steps of a compressor with two parameters in one bucket; the second parameter is exempt.
namespace octavo::compressor_steps {

inline constexpr std::int64_t kCount = 4096;
inline const std::vector<Slot> kSlots = {{0, 0}, {1, kCount}};

inline Compressor make(const thread_ranks::BackendPtr& backend, const char* plan) {
  return Compressor{std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)),
                    Plan::parse(plan),
                    {{"weight", kCount, false}, {"norm", 64, true}}};
}

inline at::Tensor bucket_of(int rank, int step) {
  return at::remainder(at::arange(kCount + 64, at::kFloat) * (37 * (rank + 1)) + 11 * step, 101) / 50.5 - 1;
}

inline std::map<std::string, at::Tensor> copy(std::map<std::string, at::Tensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

inline CompressorState copy(CompressorState state) {
  state.tensors = copy(std::move(state.tensors));
  return state;
}

inline void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

/// Returns for each element what a world still owes to the average: the senders' residuals divided by the world size,
/// and the owners' residuals.
inline at::Tensor owed(const std::vector<std::map<std::string, at::Tensor>>& world, std::uint64_t count) {
  at::Tensor total = at::zeros({static_cast<std::int64_t>(count)});
  const int size = static_cast<int>(world.size());
  for (int rank = 0; rank < size; ++rank) {
    const OthersRanges sent = others_ranges(count, rank, size);
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

}  // namespace octavo::compressor_steps
