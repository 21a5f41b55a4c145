// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lion.h"

#include <cmath>

#include "tests/conformance/step_values.h"

namespace octavo::conformance {

namespace {

constexpr float kDecay = 0.999F, kStepSize = 1e-3F;
const rules::MomentumMix kMix = {0.9F, 0.1F, 0.99F, 0.01F};

struct Values {
  Guarded<float> gradient, parameter, momentum, next;
  Values(std::uint64_t count, std::uint64_t offset)
      : gradient(count, offset), parameter(count, offset), momentum(count, offset), next(count, offset) {
    put_finite(inputs());
    for (std::uint64_t i = 0; i < count; i += 5) gradient.data()[i] = 0.0F;
    for (std::uint64_t i = 0; i < count; i += 10) momentum.data()[i] = 0.0F;
  }
  Arrays inputs() { return {&gradient, &parameter, &momentum}; }
  Arrays all() { return {&gradient, &parameter, &momentum, &next}; }
};

void expect_lion_equals_reference(std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(testing::Message() << "count " << count << " offset " << offset);
  Values expected(count, 0), got(count, offset);
  const auto run = [&](const KernelTable& table, Values& to) {
    put_specials(to.inputs());
    table.mix_momentum({}, kMix, count, to.gradient.data(), to.momentum.data(), to.next.data());
    table.sign_step({}, kDecay, kStepSize, count, to.gradient.data(), to.parameter.data());
  };
  run(reference(), expected);
  run(tested(), got);
  expect_same_arrays(got.all(), expected.all());
}

TEST(Lion, EqualsReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_lion_equals_reference(count, offset);
  }
  expect_lion_equals_reference(kLargeCount, 0);
}

TEST(Lion, WholeStepEqualsReference) {
  const rules::LionStep step{kDecay, kStepSize, kMix};
  const auto lion = [&](const KernelTable& table, const StepOperands& operands, std::uint64_t count) {
    table.lion({}, step, count, operands);
  };
  const std::vector<StepForm> few = step_forms();  // only some forms, because a device compiles a program for each
  expect_same_steps({few[0], few[4], few[8]}, lion);
  expect_same_steps_in_all_forms(lion);
}

/// Ranks need two kernels, one before and one after sending; together they do the same as the single kernel of one
/// rank.
TEST(Lion, IsAMixAndAStep) {
  constexpr std::uint64_t kCount = 1000;
  Values whole(kCount, 0), parts(kCount, 0);
  tested().lion(
      {}, {kDecay, kStepSize, kMix}, kCount,
      {.parameter = whole.parameter.data(), .gradient = whole.gradient.data(), .mean = {whole.momentum.data()}});
  tested().mix_momentum({}, kMix, kCount, parts.gradient.data(), parts.momentum.data(), parts.next.data());
  tested().sign_step({}, kDecay, kStepSize, kCount, parts.gradient.data(), parts.parameter.data());
  parts.parameter.expect_same_bits(whole.parameter);
  parts.next.expect_same_bits(whole.momentum);
}

TEST(Lion, AZeroMovesNothingAndANaNIsNotHidden) {
  Guarded<float> update(4, 0), parameter(4, 0);
  const float updates[] = {0.0F, -0.0F, std::nanf(""), -1e-30F};
  for (std::uint64_t i = 0; i < 4; ++i) {
    update.data()[i] = updates[i];
    parameter.data()[i] = 2.0F;
  }
  tested().sign_step({}, 1.0F, 0.5F, 4, update.data(), parameter.data());
  EXPECT_EQ(parameter.data()[0], 2.0F);
  EXPECT_EQ(parameter.data()[1], 2.0F);
  EXPECT_TRUE(std::isnan(parameter.data()[2]));
  EXPECT_EQ(parameter.data()[3], 2.5F);
}

}  // namespace

}  // namespace octavo::conformance
