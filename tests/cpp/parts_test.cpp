// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/parts.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

namespace octavo {

namespace {

constexpr std::uint64_t kCount = 102'400;  // of an owner of a bucket of 26 MB among 64 ranks: no whole number of parts

/// Elements by the thread that had them.
std::array<std::uint64_t, 4> elements_by_thread(const Parts& parts) {
  std::array<std::atomic<std::uint64_t>, 4> elements = {};
  parts.for_each(c10::kCPU, 64, [&](const Parts::Part& part) {
    elements[static_cast<std::size_t>(at::get_thread_num())] += part.range.count;
  });
  std::array<std::uint64_t, 4> counted = {};
  std::copy(elements.begin(), elements.end(), counted.begin());
  return counted;
}

TEST(Parts, AreSharedOutEvenly) {
  const int threads_before = at::get_num_threads();
  Parts parts;
  parts.add(c10::kCPU, kCount, 64, Parts::kSummed);
  for (const int threads : {1, 2, 3, 4}) {
    at::set_num_threads(threads);
    const auto elements = elements_by_thread(parts);
    EXPECT_EQ(std::accumulate(elements.begin(), elements.end(), std::uint64_t{0}), kCount);
    const std::uint64_t most = *std::max_element(elements.begin(), elements.end());
    EXPECT_LE(most, kCount / static_cast<std::uint64_t>(threads) + Parts::kSummed / 2) << threads << " threads";
  }
  at::set_num_threads(threads_before);
}

}  // namespace

}  // namespace octavo
