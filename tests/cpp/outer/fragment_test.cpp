// SPDX-License-Identifier: Apache-2.0
#include "octavo/outer/fragment.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

std::vector<OuterParameter> parameters_of(const std::vector<std::vector<std::int64_t>>& sizes) {
  std::vector<OuterParameter> all;
  for (const auto& size : sizes) all.push_back({std::string("p") + std::to_string(all.size()), at::zeros(size), false});
  return all;
}

TEST(Fragments, TakeEveryElementOnceInOrderAndWholeRows) {
  const auto parameters = parameters_of({{7, 3}, {5}, {40, 2, 2}, {1, 9}, {0}, {30, 1}, {}});
  for (std::uint64_t count = 1; count <= 9; ++count) {
    SCOPED_TRACE(count);
    std::vector<std::uint64_t> next(parameters.size());
    for (const auto& fragment : cut_into_fragments(parameters, count)) {
      for (const FragmentPart& part : fragment) {
        EXPECT_EQ(part.range.first, next[part.parameter]);
        next[part.parameter] += part.range.count;
        const at::Tensor& tensor = parameters[part.parameter].tensor;
        const std::int64_t row = tensor.dim() > 1 ? tensor.numel() / tensor.size(0) : tensor.numel();
        EXPECT_EQ(part.range.count, part.rows * static_cast<std::uint64_t>(row));
      }
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      EXPECT_EQ(next[p], static_cast<std::uint64_t>(parameters[p].tensor.numel()));
    }
  }
}

TEST(Fragments, AreEqualButForARow) {
  const auto parameters = parameters_of({{1000, 16}, {3000, 8}, {16}});
  const std::uint64_t fair = 40016 / 4;
  for (const auto& fragment : cut_into_fragments(parameters, 4)) {
    std::uint64_t count = 0;
    for (const FragmentPart& part : fragment) count += part.range.count;
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(fair), 17);
  }
}

TEST(Fragments, WithoutAnythingAreRefused) {
  const auto parameters = parameters_of({{2, 50}, {3}});
  EXPECT_EQ(cut_into_fragments(parameters, 2).size(), 2U);
  EXPECT_THROW(cut_into_fragments(parameters, 4), Error);
}

}  // namespace

}  // namespace octavo
