// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lamb.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

TEST(Lamb, EqualsReference) {
  const rules::LambStep step{0.1F, 0.999F, 0.001F, 0.5F, 0.25F, 1e-6F, 0.01F};
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) {
      const auto values = finite_values(4 * count + offset, count);
      struct State {
        Guarded<float> mean, square, direction;
      } expected{count, count, count}, got{{count, offset}, {count, offset}, {count, offset}};
      const auto run = [&](const KernelTable& table, State& to) {
        for (std::uint64_t i = 0; i < count; ++i) {
          to.mean.data()[i] = values[count + i];
          to.square.data()[i] = values[2 * count + i] * values[2 * count + i];
        }
        table.lamb_moments({}, step, count, values.data(), to.mean.data(), to.square.data());
        table.lamb_direction({}, step, count, values.data() + 3 * count + offset, to.mean.data(), to.square.data(),
                             to.direction.data());
      };
      run(reference(), expected);
      run(tested(), got);
      SCOPED_TRACE(count);
      got.mean.expect_same_bits(expected.mean);
      got.square.expect_same_bits(expected.square);
      got.direction.expect_same_bits(expected.direction);
      got.direction.expect_untouched_around();
    }
  }
}

TEST(Lamb, AGradientWhoseSquareIsNotFiniteChangesNoMoment) {
  const rules::LambStep step{0.1F, 0.999F, 0.001F, 0.5F, 0.25F, 1e-6F, 0.01F};
  const std::vector<float> gradient = {1e20F, std::numeric_limits<float>::infinity(), std::nanf(""), 1e18F};
  std::vector<float> mean(4, 0.5F), square(4, 0.25F);
  tested().lamb_moments({}, step, 4, gradient.data(), mean.data(), square.data());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(mean[i], 0.5F) << i;
    EXPECT_EQ(square[i], 0.25F) << i;
  }
  EXPECT_GT(mean[3], 1e16F);
  EXPECT_GT(square[3], 1e32F);
}

}  // namespace

}  // namespace octavo::conformance
