// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/mini_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octavo::rules {

namespace {

template <class Float>
class MiniFloatTest : public ::testing::Test {};
using Floats = ::testing::Types<E4M3, E5M2, E3M0, Half>;
TYPED_TEST_SUITE(MiniFloatTest, Floats);

/// Returns the largest code of a value that is not negative; the smallest is 0.
template <class Float>
std::uint32_t largest_code() {
  return Float::code(std::numeric_limits<float>::max());
}

TYPED_TEST(MiniFloatTest, EveryCodeIsItsValuesCode) {
  for (std::uint32_t code = 0; code <= largest_code<TypeParam>(); ++code) {
    for (const std::uint32_t sign : {std::uint32_t{0}, TypeParam::kSign}) {
      EXPECT_EQ(TypeParam::code(TypeParam::value(code | sign)), code | sign);
    }
    if (code > 0) {
      EXPECT_GT(TypeParam::value(code), TypeParam::value(code - 1));
    }
  }
  EXPECT_EQ(TypeParam::value(0), 0.0F);
}

/// A value between two neighbours is rounded to the nearer one; the middle is rounded to the one with the even code.
TYPED_TEST(MiniFloatTest, RoundsToNearestEven) {
  for (std::uint32_t code = 0; code < largest_code<TypeParam>(); ++code) {
    const float low = TypeParam::value(code), high = TypeParam::value(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(TypeParam::code(std::nextafter(middle, low)), code);
    EXPECT_EQ(TypeParam::code(std::nextafter(middle, high)), code + 1);
    EXPECT_EQ(TypeParam::code(middle), code + code % 2) << low << " " << high;
    EXPECT_EQ(TypeParam::code(-middle), (code + code % 2) | TypeParam::kSign);
  }
}

TYPED_TEST(MiniFloatTest, WhatIsTooLargeBecomesTheGreatest) {
  const float greatest = TypeParam::kGreatest;
  EXPECT_EQ(TypeParam::value(largest_code<TypeParam>()), greatest);
  for (const float value : {greatest * 1.01F, greatest * 100, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(TypeParam::value(TypeParam::code(value)), greatest);
    EXPECT_EQ(TypeParam::value(TypeParam::code(-value)), -greatest);
  }
}

TEST(MiniFloat, HasTheRangesOfItsNames) {
  EXPECT_EQ(E4M3::kGreatest, 448.0F);
  EXPECT_EQ(E4M3::kLeast, 0x1p-9F);
  EXPECT_EQ(E5M2::kGreatest, 57344.0F);
  EXPECT_EQ(E5M2::kLeast, 0x1p-16F);
  EXPECT_EQ(Half::kGreatest, 65504.0F);
  EXPECT_EQ(Half::kLeast, 0x1p-24F);
  EXPECT_EQ(E3M0::kGreatest, 16.0F);
  EXPECT_EQ(E3M0::kLeast, 0.25F);
}

}  // namespace

}  // namespace octavo::rules
