// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/residual.h"

#include <gtest/gtest.h>

#include <limits>

#include "octavo/rules/sign_bits.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

float kept(float value) { return rules::from_residual(rules::to_residual(value)); }

TEST(Residual, RoundsToNearestAndTiesAwayFromZero) {
  EXPECT_EQ(kept(1.0F), 1.0F);
  EXPECT_EQ(kept(1.0F + 0x1p-9F), 1.0F);
  EXPECT_EQ(kept(1.0F + 0x1p-8F), 1.0F + 0x1p-7F);
  EXPECT_EQ(kept(-1.0F - 0x1p-8F), -1.0F - 0x1p-7F);
  EXPECT_EQ(kept(0x1.8p-133F), 0x1p-132F);  // denormals too
  EXPECT_TRUE(std::signbit(kept(-0.0F)));
}

TEST(Residual, AFiniteOneStaysFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  EXPECT_EQ(kept(kMost), 0x1.FEp127F);
  EXPECT_EQ(kept(-kMost), -0x1.FEp127F);
}

/// One huge value in a large block: its scale is far below, and nearly all of it is left over.
TEST(Residual, WhatASignLeavesOfAHugeValueStaysFinite) {
  constexpr std::uint64_t kCount = 4096;
  std::vector<float> values(kCount, 0.0F);
  values[77] = std::numeric_limits<float>::max();
  Encoded to(1, rules::packed_sign_bytes(kCount), kCount, 0);
  tested().scaled_sign.encode({}, {values.data()}, kCount, kCount, to.payload(), to.next.data());
  EXPECT_EQ(rules::from_residual(to.next.data()[77]), 0x1.FEp127F);
}

}  // namespace

}  // namespace octavo::conformance
