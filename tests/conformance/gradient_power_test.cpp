// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/gradient_power.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

std::uint64_t chunks(std::uint64_t count, std::uint64_t stride) { return (count + stride - 1) / stride; }

void expect_reference(const std::vector<float>& values, std::uint64_t count, std::uint64_t offset) {
  for (const std::uint64_t stride : {rules::kPowerChunk, 8 * rules::kPowerChunk}) {
    Guarded<float> expected(chunks(count, stride)), got(chunks(count, stride), offset);
    reference().chunk_powers({}, values.data() + offset, count, stride, expected.data());
    tested().chunk_powers({}, values.data() + offset, count, stride, got.data());
    SCOPED_TRACE(count);
    got.expect_same_bits(expected);
    got.expect_untouched_around();
  }
}

TEST(GradientPower, EqualsReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_reference(finite_values(count + offset, count), count, offset);
  }
}

TEST(GradientPower, OfALargeTensorEqualsReference) { expect_reference(finite_values(kLargeCount, 1), kLargeCount, 0); }

TEST(GradientPower, IsZeroForZerosAlone) {
  std::vector<float> values(3 * rules::kPowerChunk, -0.0F);
  values[rules::kPowerChunk + 77] = -1e-41F;  // its square underflows to zero
  float powers[3];
  tested().chunk_powers({}, values.data(), values.size(), rules::kPowerChunk, powers);
  EXPECT_EQ(powers[0], 0.0F);
  EXPECT_EQ(powers[1], rules::kLeastPower);
  EXPECT_EQ(powers[2], 0.0F);
}

TEST(GradientPower, ShowsWhatIsNotFinite) {
  std::vector<float> values(2 * rules::kPowerChunk, 1.0F);
  values[5] = std::nanf("");
  values[rules::kPowerChunk] = -std::numeric_limits<float>::infinity();
  float powers[2];
  tested().chunk_powers({}, values.data(), values.size(), rules::kPowerChunk, powers);
  EXPECT_TRUE(std::isnan(powers[0]));
  EXPECT_TRUE(std::isinf(powers[1]));
}

}  // namespace

}  // namespace octavo::conformance
