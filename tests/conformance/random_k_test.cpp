// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/random_k.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_equals_reference(const rules::RandomK& shape, std::uint64_t count, std::uint64_t offset,
                             const std::vector<float>& values) {
  SCOPED_TRACE(::testing::Message() << "stride " << shape.stride << " count " << count << " offset " << offset);
  std::vector<rules::Residual> residual;
  for (const float value : finite_values(count + offset, 12)) residual.push_back(rules::to_residual(value, 0x8000));
  EncodeInput in{values.data()};
  if (offset % 2 == 1) in.residual = residual.data();
  in.rounding_key = 78;
  in = in.from(offset);

  Guarded<float> want(shape.kept_in(count)), have(shape.kept_in(count), offset);
  reference().select_random({}, in, count, shape, want.data());
  tested().select_random({}, in, count, shape, have.data());
  have.expect_same_bits(want);
  have.expect_untouched_around();

  const std::vector<float> sent(want.data(), want.data() + want.count());
  Guarded<rules::Residual> next_wanted(count), next(count, offset);
  reference().settle_random({}, in, count, shape, sent.data(), next_wanted.data());
  tested().settle_random({}, in, count, shape, sent.data(), next.data());
  next.expect_same_bits(next_wanted);
  next.expect_untouched_around();

  expect_same_results(count, offset, [&](const KernelTable& table, Store how, float* out, std::uint32_t* nonfinite) {
    table.scatter_random({}, sent.data(), count, shape, how, out, nonfinite);
  });
}

TEST(RandomK, EqualsReference) {
  for (const std::uint64_t stride : {2, 3, 64, 100, 4096, 1'000'000}) {
    for (const bool is_unbiased : {false, true}) {
      const rules::RandomK shape = {0x1234567890ABCDEF, stride, 7, is_unbiased};
      for (const std::uint64_t count : kCounts) {
        for (const std::uint64_t offset : kOffsets) {
          expect_equals_reference(shape, count, offset, finite_values(count + offset, 5));
        }
      }
      expect_equals_reference(shape, 10007, 0, any_values(10007, 8));
    }
  }
  expect_equals_reference({3, 100, 0, false}, kLargeCount, 0, finite_values(kLargeCount, 7));
}

TEST(RandomK, ANanAtAPlaceThatIsNotDrawnIsSentToo) {
  const rules::RandomK shape = {5, 100, 0, false};
  std::vector<float> values(1000, 1.0F), kept(10);
  const std::uint64_t drawn = shape.index(3, 1000);
  values[drawn == 300 ? 301 : 300] = std::nanf("");
  tested().select_random({}, {values.data()}, 1000, shape, kept.data());
  for (std::uint64_t j = 0; j < kept.size(); ++j) EXPECT_EQ(std::isnan(kept[j]), j == 3);
}

/// Each position of a stride is drawn equally often, whatever the key.
TEST(RandomK, PlacesAreUniform) {
  constexpr std::uint64_t kStride = 8, kStrides = 1 << 16;
  for (const std::uint64_t key : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
    const rules::RandomK shape = {rules::derive_key(key, 0), kStride, 0, false};
    int drawn[kStride] = {};
    for (std::uint64_t j = 0; j < kStrides; ++j) {
      const std::uint64_t index = shape.index(j, kStride * kStrides);
      ASSERT_EQ(index / kStride, j);
      ++drawn[index % kStride];
    }
    for (const int times : drawn) EXPECT_NEAR(times, kStrides / kStride, 500);  // 5 standard deviations
  }
}

}  // namespace

}  // namespace octavo::conformance
