// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/damped_feedback.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_damped_feedback_equals_reference(std::uint64_t count, std::uint64_t offset, bool has_memory) {
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset << " memory " << has_memory);
  const auto gradient = any_values(count + offset, 3), before = finite_values(count + offset, 4);
  const auto others = finite_values(count + offset, 6), estimates = finite_values(count + offset, 7);
  const float* const owed = has_memory ? before.data() + offset : nullptr;
  const float* const estimate = has_memory && offset % 2 == 0 ? estimates.data() + offset : nullptr;
  EncodeInput in{gradient.data()};
  in.gradient_weight = 0.3F;
  if (offset % 2 == 1) in.others = others.data();
  in.sum_weight = 0.5F;

  Guarded<float> want(count), have(count, offset);
  reference().add_owed({}, in.from(offset), 0.2F, owed, estimate, count, want.data());
  tested().add_owed({}, in.from(offset), 0.2F, owed, estimate, count, have.data());
  have.expect_same_bits(want);
  have.expect_untouched_around();

  const auto all_received = any_values(count + offset, 8);
  const float* const received = all_received.data() + offset;
  Guarded<float> next_wanted(count), next(count, offset);
  reference().keep_owed({}, in.from(offset), owed, received, count, next_wanted.data());
  tested().keep_owed({}, in.from(offset), owed, received, count, next.data());
  next.expect_same_bits(next_wanted);
  next.expect_untouched_around();
}

TEST(DampedFeedback, EqualsReference) {
  for (const bool has_memory : {false, true}) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) expect_damped_feedback_equals_reference(count, offset, has_memory);
    }
    expect_damped_feedback_equals_reference(kLargeCount, 0, has_memory);
  }
}

TEST(DampedFeedback, APartOfWhatIsOwedIsAddedAndTheRestStays) {
  const std::vector<float> gradient = {1, 2, std::nanf("")}, owed = {8, -4, 1}, estimate = {2, 1, 0};
  std::vector<float> values(3), next(3);
  EncodeInput in{gradient.data()};
  in.gradient_weight = 2;
  tested().add_owed({}, in, 0.25F, owed.data(), estimate.data(), 3, values.data());
  EXPECT_EQ(values[0], 2 + 2 - 2);
  EXPECT_EQ(values[1], 4 - 1 - 1);
  const std::vector<float> received = {3, 3, 3};
  tested().keep_owed({}, in, owed.data(), received.data(), 3, next.data());
  EXPECT_EQ(next, (std::vector<float>{2 + 8 - 3, 4 - 4 - 3, 0})) << "nothing is owed of what is no number";
}

/// What is owed may be kept as int8 blocks, whose scale is no number where a value is 2^126 or larger.
TEST(DampedFeedback, WhatIsOwedCanBeKeptInBlocks) {
  const std::vector<float> gradient = {1e38F, -3e38F, 1e30F}, received = {0, 3e37F, 0};
  std::vector<float> next(3);
  tested().keep_owed({}, EncodeInput{gradient.data()}, nullptr, received.data(), 3, next.data());
  EXPECT_EQ(next, (std::vector<float>{0x1p125F, -0x1p125F, 1e30F}));
}

}  // namespace

}  // namespace octavo::conformance
