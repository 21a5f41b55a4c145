// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/hits.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_hits_equal_reference(std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset);
  Guarded<float> sum_wanted(count), sum(count, offset), hits_wanted(count), hits(count, offset);
  const auto run = [&](const KernelTable& table, Guarded<float>& to_sum, Guarded<float>& to_hits) {
    for (const std::uint64_t rank : {0, 1, 2}) {
      std::vector<float> values = rank == 1 ? any_values(count + offset, 5) : finite_values(count + offset, 6 + rank);
      for (std::uint64_t i = rank; i < values.size(); i += 2 + rank) values[i] = i % 5 == 0 ? -0.0F : 0.0F;
      const Store how = rank == 0 ? Store::assign : Store::add;
      table.add_hits({}, values.data() + offset, count, how, to_sum.data(), to_hits.data());
    }
    table.divide_by_hits({}, to_hits.data(), 0.75F, count, to_sum.data());
  };
  run(reference(), sum_wanted, hits_wanted);
  run(tested(), sum, hits);
  sum.expect_same_bits(sum_wanted);
  hits.expect_same_bits(hits_wanted);
  sum.expect_untouched_around();
  hits.expect_untouched_around();
}

TEST(Hits, EqualReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_hits_equal_reference(count, offset);
  }
  expect_hits_equal_reference(kLargeCount, 0);
}

TEST(Hits, EachSumIsDividedByTheRanksThatSentAValueThere) {
  const float nan = std::nanf("");
  const std::vector<std::vector<float>> of_ranks = {{3, 0, 6, 1, 0}, {0, -0.0F, 3, 2, nan}, {0, 0, 0, 6, 0}};
  std::vector<float> sum(5), hits(5);
  for (const std::vector<float>& values : of_ranks) {
    const Store how = &values == &of_ranks.front() ? Store::assign : Store::add;
    tested().add_hits({}, values.data(), 5, how, sum.data(), hits.data());
  }
  EXPECT_EQ(hits, (std::vector<float>{1, 0, 2, 3, 1}));
  tested().divide_by_hits({}, hits.data(), 2.0F, 5, sum.data());
  EXPECT_TRUE(std::isnan(sum[4])) << "no hit hides what is not a number";
  sum.pop_back();
  EXPECT_EQ(sum, (std::vector<float>{6, 0, 9, 6}));
}

TEST(Hits, WhereAllRanksHitTheBitsAreThoseOfTheMeanOverRanks) {
  for (const float ranks : {2.0F, 3.0F, 7.0F}) {
    for (float sum : {1.0F, 0.1F, -7.3F}) {
      const float expected = (1.0F / ranks) * sum;
      tested().divide_by_hits({}, &ranks, 1.0F, 1, &sum);
      EXPECT_EQ(sum, expected);
    }
  }
}

}  // namespace

}  // namespace octavo::conformance
