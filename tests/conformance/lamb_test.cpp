// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lamb.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

constexpr rules::LambStep kLambStep{0.1F, 0.999F, 0.001F, 0.5F, 0.25F, 1e-6F, 0.01F};

struct LambValues {
  Guarded<float> gradient, parameter, mean, square, direction;
  LambValues(std::uint64_t count, std::uint64_t offset)
      : gradient(count, offset),
        parameter(count, offset),
        mean(count, offset),
        square(count, offset),
        direction(count, offset) {
    put_finite(all());
    put_specials({&gradient, &parameter, &mean, &square});
    for (std::uint64_t i = 0; i < count; ++i) square.data()[i] *= square.data()[i];
  }
  Arrays all() { return {&gradient, &parameter, &mean, &square, &direction}; }
  void step(const KernelTable& table) {
    const std::uint64_t count = gradient.count();
    table.lamb_moments({}, kLambStep, count, gradient.data(), mean.data(), square.data());
    table.lamb_direction({}, kLambStep, count, parameter.data(), mean.data(), square.data(), direction.data());
  }
};

void expect_lamb_equals_reference(std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(testing::Message() << "count " << count << " offset " << offset);
  LambValues expected(count, 0), got(count, offset);
  expected.step(reference());
  got.step(tested());
  expect_same_arrays(got.all(), expected.all());
}

TEST(Lamb, EqualsReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_lamb_equals_reference(count, offset);
  }
  expect_lamb_equals_reference(kLargeCount, 0);
}

TEST(Lamb, AGradientWhoseSquareIsNotFiniteChangesNoMoment) {
  const std::vector<float> gradient = {1e20F, std::numeric_limits<float>::infinity(), std::nanf(""), 1e18F};
  std::vector<float> mean(4, 0.5F), square(4, 0.25F);
  tested().lamb_moments({}, kLambStep, 4, gradient.data(), mean.data(), square.data());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(mean[i], 0.5F) << i;
    EXPECT_EQ(square[i], 0.25F) << i;
  }
  EXPECT_GT(mean[3], 1e16F);
  EXPECT_GT(square[3], 1e32F);
}

}  // namespace

}  // namespace octavo::conformance
