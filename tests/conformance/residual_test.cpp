// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/residual.h"

#include <gtest/gtest.h>

#include <limits>

#include "octavo/rules/sign_bits.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

constexpr std::uint32_t kLeast = 0, kMost = 0xFFFF;  // the range of the random bits

float kept(float value, std::uint32_t random) { return rules::from_residual(rules::to_residual(value, random)); }

TEST(Residual, WhatBfloat16HoldsStaysAsItIs) {
  for (const float value : {0.0F, -0.0F, 1.0F, -1.5F, 0x1p-133F, 0x1.FEp127F}) {
    for (const std::uint32_t random : {kLeast, kMost}) {
      EXPECT_EQ(rules::to_bits(kept(value, random)), rules::to_bits(value));
    }
  }
}

TEST(Residual, RoundsAwayFromZeroAsOftenAsTheFractionSays) {
  constexpr float kUnit = 0x1p-7F;  // the unit of the last place between 1 and 2
  for (const int quarters : {1, 2, 3}) {
    int up = 0;
    for (std::uint32_t random = kLeast; random <= kMost; ++random) {
      const float rounded = kept(-1.0F - static_cast<float>(quarters) / 4 * kUnit, random);
      ASSERT_TRUE(rounded == -1.0F || rounded == -1.0F - kUnit);
      up += rounded != -1.0F;
    }
    EXPECT_EQ(up, quarters * 0x4000);
  }
  EXPECT_EQ(kept(0x1.8p-133F, 0x7FFF), 0x1p-133F);  // denormals are rounded in the same way
  EXPECT_EQ(kept(0x1.8p-133F, 0x8000), 0x1p-132F);
}

TEST(Residual, AFiniteOneStaysFinite) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::uint32_t random : {kLeast, kMost}) {
    EXPECT_EQ(kept(kLargest, random), 0x1.FEp127F);
    EXPECT_EQ(kept(-kLargest, random), -0x1.FEp127F);
  }
}

std::vector<rules::Residual> residuals_of(std::uint64_t count) {
  std::vector<rules::Residual> residuals;
  for (const float value : finite_values(count, 3)) residuals.push_back(rules::to_residual(value, kLeast));
  return residuals;
}

void expect_decay_equals_reference(std::uint64_t count, std::uint64_t offset, std::uint64_t first, Store store) {
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset << " first " << first);
  const std::vector<rules::Residual> residual = residuals_of(count + offset);
  Guarded<rules::Residual> want(count), have(count, offset);
  for (std::uint64_t i = 0; i < count; ++i) want.data()[i] = have.data()[i] = residual[count + offset - 1 - i];
  reference().decay_residual({}, residual.data() + offset, 0.95F, 77, first, count, store, want.data());
  tested().decay_residual({}, residual.data() + offset, 0.95F, 77, first, count, store, have.data());
  have.expect_same_bits(want);
  have.expect_untouched_around();
}

TEST(Residual, DecayEqualsReference) {
  for (const Store store : {Store::assign, Store::add}) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) expect_decay_equals_reference(count, offset, 64 * offset, store);
      expect_decay_equals_reference(count, 0, 3, store);
    }
    expect_decay_equals_reference(kLargeCount, 0, 1U << 20, store);
  }
}

TEST(Residual, ADecayNearOneIsNotLostInRounding) {
  constexpr std::uint64_t kCount = 1U << 16;
  const std::vector<rules::Residual> ones(kCount, rules::to_residual(-1.0F, kLeast));
  std::vector<rules::Residual> decayed(kCount);
  tested().decay_residual({}, ones.data(), 0.9998F, 5, 0, kCount, Store::assign, decayed.data());
  double sum = 0;
  for (const rules::Residual residual : decayed) sum += rules::from_residual(residual);
  EXPECT_NEAR(sum / kCount, -0.9998, 0.00002);  // three standard deviations of the mean are 0.00001
  std::vector<rules::Residual> halved(kCount);
  tested().decay_residual({}, ones.data(), 0.5F, 5, 0, kCount, Store::assign, halved.data());
  for (const rules::Residual residual : halved) ASSERT_EQ(rules::from_residual(residual), -0.5F);
}

/// One huge value is in a large block: the scale is far smaller, and nearly all of the value is left over.
TEST(Residual, WhatASignLeavesOfAHugeValueStaysFinite) {
  constexpr std::uint64_t kCount = 4096;
  std::vector<float> values(kCount, 0.0F);
  values[77] = std::numeric_limits<float>::max();
  Encoded to(1, rules::packed_sign_bytes(kCount), kCount, 0);
  tested().of(BlockCodec::sign).encode({}, {values.data()}, kCount, kCount, to.payload(), to.next.data());
  EXPECT_EQ(rules::from_residual(to.next.data()[77]), 0x1.FEp127F);
}

}  // namespace

}  // namespace octavo::conformance
