// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/outer_step.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

struct OuterValues {
  Guarded<float> difference, momentum, anchor, parameter;
  OuterValues(std::uint64_t count, std::uint64_t offset)
      : difference(count, offset), momentum(count, offset), anchor(count, offset), parameter(count, offset) {
    put_finite(all());
  }
  Arrays all() { return {&difference, &momentum, &anchor, &parameter}; }
  void step(const KernelTable& table, const rules::OuterStep& how, float* its_momentum) {
    table.outer_step({}, how, difference.count(), difference.data(), its_momentum, anchor.data(), parameter.data());
  }
};

void expect_outer_step_equals_reference(const rules::OuterStep& how, std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(testing::Message() << "count " << count << " offset " << offset << " own share " << how.own_share);
  OuterValues expected(count, 0), got(count, offset);
  put_specials(expected.all());
  put_specials(got.all());
  expected.step(reference(), how, expected.momentum.data());
  got.step(tested(), how, got.momentum.data());
  expect_same_arrays(got.all(), expected.all());
}

TEST(OuterStep, EqualsReference) {
  for (const rules::OuterStep& how : {rules::OuterStep{-0.7F, 0.6F, 0.0F}, rules::OuterStep{-0.7F, 0.9F, 0.5F},
                                      rules::OuterStep{-1.0F, 0.5F, 0.0F, true}}) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) expect_outer_step_equals_reference(how, count, offset);
    }
    expect_outer_step_equals_reference(how, kLargeCount, 0);
  }
}

/// Without momentum, the difference itself may be passed in its place.
TEST(OuterStep, WithoutMomentumIsAPlainStep) {
  constexpr std::uint64_t kCount = 1000;
  OuterValues values(kCount, 0), before(kCount, 0);
  values.step(tested(), {-1.0F, 0.0F, 0.0F}, values.difference.data());
  values.difference.expect_same_bits(before.difference);
  values.anchor.expect_same_bits(values.parameter);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(values.anchor.data()[i], before.anchor.data()[i] - before.difference.data()[i]);
  }
}

/// The anchor then moves by what the momentum has become.
TEST(OuterStep, ASpreadMomentumIsThatOfSgd) {
  constexpr std::uint64_t kCount = 1000;
  OuterValues values(kCount, 0), before(kCount, 0);
  values.step(tested(), {-1.0F, 0.5F, 0.0F, true}, values.momentum.data());
  for (std::uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(values.momentum.data()[i], 0.5F * before.momentum.data()[i] + before.difference.data()[i]);
    EXPECT_EQ(values.anchor.data()[i], before.anchor.data()[i] - values.momentum.data()[i]);
  }
}

/// A rank that keeps nothing of its own recovers from a NaN.
TEST(OuterStep, TheAnchorReplacesNan) {
  OuterValues values(10, 0);
  values.parameter.data()[3] = std::numeric_limits<float>::quiet_NaN();
  values.step(tested(), {-0.7F, 0.6F, 0.0F}, values.momentum.data());
  values.parameter.expect_same_bits(values.anchor);
}

}  // namespace

}  // namespace octavo::conformance
