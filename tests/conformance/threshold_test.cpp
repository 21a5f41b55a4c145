// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/threshold.h"

#include <gtest/gtest.h>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_counts_equal_reference(const std::vector<float>& values, std::uint64_t offset, float threshold) {
  const std::uint64_t count = values.size() - offset;
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset << " threshold " << threshold);
  const std::uint64_t chunks = (count + rules::kCountChunk - 1) / rules::kCountChunk;
  Guarded<std::uint32_t> wanted(chunks), counts(chunks, offset);
  const std::uint32_t least = rules::least_above(threshold);
  reference().count_large({}, values.data() + offset, count, least, wanted.data());
  tested().count_large({}, values.data() + offset, count, least, counts.data());
  counts.expect_same_bits(wanted);
  counts.expect_untouched_around();
}

TEST(Threshold, CountsEqualReference) {
  std::vector<std::uint64_t> sizes = kCounts;
  sizes.insert(sizes.end(), {rules::kCountChunk, rules::kCountChunk + 1, 5 * rules::kCountChunk - 1});
  for (const std::uint64_t count : sizes) {
    for (const std::uint64_t offset : kOffsets) {
      for (const float threshold : {0.0F, 0.1F, 1e30F, std::numeric_limits<float>::infinity()}) {
        expect_counts_equal_reference(any_values(count + offset, 3), offset, threshold);
      }
    }
  }
}

TEST(Threshold, WhatIsEqualIsNotAboveAndNaNsAlwaysAre) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {2.0F, -2.0F, std::nextafter(2.0F, 3.0F), -3.0F, std::nanf(""), infinity, 0.0F};
  const auto above = [&](float threshold) {
    std::uint32_t found = 0;
    tested().count_large({}, values.data(), values.size(), rules::least_above(threshold), &found);
    return found;
  };
  EXPECT_EQ(above(2.0F), 4U);
  EXPECT_EQ(above(0.0F), 6U);
  EXPECT_EQ(above(infinity), 2U);
  EXPECT_EQ(above(std::nanf("")), 2U);
}

}  // namespace

}  // namespace octavo::conformance
