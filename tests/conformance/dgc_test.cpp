// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/dgc.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_dgc_equals_reference(std::uint64_t count, std::uint64_t offset, bool has_velocity) {
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset << " velocity " << has_velocity);
  const auto gradient = any_values(count + offset, 3), before = finite_values(count + offset, 4);
  auto sent = finite_values(count + offset, 5);
  for (std::uint64_t i = 0; i < sent.size(); i += 3) sent[i] = 0.0F;
  Guarded<float> want(count), have(count, offset);
  const auto run = [&](const KernelTable& table, Guarded<float>& next) {
    table.correct_momentum({}, 0.9F, 0.3F, gradient.data() + offset, has_velocity ? before.data() + offset : nullptr,
                           count, next.data());
    table.mask_momentum({}, sent.data() + offset, count, next.data());
  };
  run(reference(), want);
  run(tested(), have);
  have.expect_same_bits(want);
  have.expect_untouched_around();
}

TEST(Dgc, EqualsReference) {
  for (const bool has_velocity : {false, true}) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) expect_dgc_equals_reference(count, offset, has_velocity);
    }
    expect_dgc_equals_reference(kLargeCount, 0, has_velocity);
  }
}

TEST(Dgc, WhatWasSentBeginsAnewAndTheRestGoesOn) {
  const std::vector<float> gradient = {1, 2, 3, 4}, sent = {0, 5, -0.0F, -1};
  std::vector<float> velocity = {10, 20, 30, 40};
  tested().correct_momentum({}, 0.5F, 2.0F, gradient.data(), velocity.data(), 4, velocity.data());
  EXPECT_EQ(velocity, (std::vector<float>{7, 14, 21, 28}));
  tested().mask_momentum({}, sent.data(), 4, velocity.data());
  EXPECT_EQ(velocity, (std::vector<float>{7, 0, 21, 0}));
}

}  // namespace

}  // namespace octavo::conformance
