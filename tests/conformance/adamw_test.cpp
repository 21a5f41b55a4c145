// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

struct State {
  Guarded<float> parameter, mean, square;
  State(std::uint64_t count, std::uint64_t offset)
      : parameter(count, offset), mean(count, offset), square(count, offset) {
    const auto values = finite_values(3 * count, 5);
    for (std::uint64_t i = 0; i < count; ++i) {
      parameter.data()[i] = values[i];
      mean.data()[i] = values[count + i];
      square.data()[i] = values[2 * count + i] * values[2 * count + i];
    }
  }
};

TEST(AdamW, EqualsReference) {
  const rules::AdamWStep step{0.999F, 1e-3F, 0.1F, 0.999F, 0.001F, 0.5F, 1e-8F};
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) {
      const auto gradient = finite_values(count + offset, count);
      State expected(count, 0), got(count, offset);
      const auto run = [&](const KernelTable& table, State& to) {
        table.adamw({}, step, count, gradient.data() + offset, to.parameter.data(), to.mean.data(), to.square.data());
        table.frozen_adamw({}, 0.999F, 1e-3F, count, to.mean.data(), to.parameter.data());
      };
      run(reference(), expected);
      run(tested(), got);
      SCOPED_TRACE(count);
      got.parameter.expect_same_bits(expected.parameter);
      got.mean.expect_same_bits(expected.mean);
      got.square.expect_same_bits(expected.square);
      got.parameter.expect_untouched_around();
    }
  }
}

}  // namespace

}  // namespace octavo::conformance
