// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/state_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace octavo {

namespace {

template <class Map>
std::vector<float> values_of_map() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 1U << Map::kBits; ++code) values.push_back(Map::decoded(code, 1.0F));
  return values;
}

void expect_near(float got, float expected) { EXPECT_NEAR(got, expected, 3e-7F * std::abs(expected)); }

/// The maps are those of bitsandbytes' create_dynamic_map(signed=True) and (signed=False), each of 256 values.
TEST(StateCodes, EightBitsAreTheGoldenMap) {
  const auto momentum = values_of_map<rules::Momentum8>(), variance = values_of_map<rules::Variance8>();
  const std::vector<std::pair<std::size_t, float>> momenta = {
      {0, -0.99296875F},  {1, -0.97890624F},  {63, -0.10703125F}, {64, -0.09859375F}, {126, -5.5e-7F},
      {127, 0.0F},        {128, 5.5e-7F},     {129, 3.25e-6F},    {130, 7.75e-6F},    {190, 0.09859375F},
      {191, 0.10703125F}, {254, 0.99296875F}, {255, 1.0F}};
  for (const auto& [code, value] : momenta) expect_near(momentum[code], value);
  const std::vector<std::pair<std::size_t, float>> variances = {
      {0, 0.0F}, {1, 3.25e-7F}, {2, 7.75e-7F}, {3, 2.125e-6F}, {127, 0.10351563F}, {254, 0.99648437F}, {255, 1.0F}};
  for (const auto& [code, value] : variances) expect_near(variance[code], value);
}

/// The maps are those of lpmm and torchao.
TEST(StateCodes, FourBitsAreTheGoldenMap) {
  const std::vector<float> expected = {-0.8875F, -0.6625F, -0.4375F, -0.2125F, -0.0775F, -0.0325F, -0.0055F, 0.0F,
                                       0.0055F,  0.0325F,  0.0775F,  0.2125F,  0.4375F,  0.6625F,  0.8875F,  1.0F};
  const auto momentum = values_of_map<rules::Momentum4>(), variance = values_of_map<rules::Variance4>();
  for (std::size_t i = 0; i < 16; ++i) {
    expect_near(momentum[i], expected[i]);
    EXPECT_EQ(variance[i], static_cast<float>(i + 1) / 16) << i;
  }
}

/// Checks that a value has the code of the nearest map value, except within rounding of the middle between two.
template <class Map>
void expect_nearest(bool keeps_from_zero) {
  const auto map = values_of_map<Map>();
  const rules::StateScale scale = rules::state_scale(1.0F);
  for (std::size_t i = 0; i + 1 < map.size(); ++i) {
    const float low = map[i], high = map[i + 1], middle = (low + high) / 2, step = high - low;
    const std::uint32_t of_low = keeps_from_zero && i == 0 ? 1U : static_cast<std::uint32_t>(i);
    EXPECT_EQ(Map::code(low + 0.499F * step, scale), of_low) << middle;
    EXPECT_EQ(Map::code(low + 0.501F * step, scale), i + 1) << middle;
    EXPECT_EQ(Map::code(high, scale), i + 1) << high;
  }
}

TEST(StateCodes, ACodeIsOfTheNearestValue) {
  expect_nearest<rules::Momentum8>(false);
  expect_nearest<rules::Variance8>(true);
  expect_nearest<rules::Momentum4>(false);
  expect_nearest<rules::Variance4>(false);
}

/// Otherwise each step would shrink a block with a negative extreme by 0.7 %.
TEST(StateCodes, TheExtremeIsKeptExactlyWhicheverSignItHas) {
  for (const float extreme : {0.37F, -0.37F, -3e-20F, 5e30F}) {
    const rules::StateScale scale = rules::state_scale(extreme);
    EXPECT_EQ(rules::Momentum8::decoded(rules::Momentum8::code(extreme, scale), scale.kept), extreme);
    EXPECT_EQ(rules::Momentum4::decoded(rules::Momentum4::code(extreme, scale), scale.kept), extreme);
    // the map has no value for the extreme with the opposite sign
    const float opposite = rules::Momentum8::decoded(rules::Momentum8::code(-extreme, scale), scale.kept);
    EXPECT_NEAR(opposite / -extreme, 0.993F, 1e-3F);
  }
}

TEST(StateCodes, ZeroStaysZeroAndAVarianceStaysAboveIt) {
  for (const float extreme : {0.0F, 1.0F, -1.0F, 1e-40F, 1e38F}) {
    const rules::StateScale scale = rules::state_scale(extreme);
    for (const float zero : {0.0F, -0.0F}) {
      EXPECT_EQ(rules::Momentum8::decoded(rules::Momentum8::code(zero, scale), scale.kept), 0.0F);
      EXPECT_EQ(rules::Variance8::decoded(rules::Variance8::code(zero, scale), scale.kept), 0.0F);
      EXPECT_EQ(rules::Momentum4::decoded(rules::Momentum4::code(zero, scale), scale.kept), 0.0F);
    }
  }
  const rules::StateScale scale = rules::state_scale(1.0F);
  EXPECT_GT(rules::Variance8::decoded(rules::Variance8::code(1e-30F, scale), scale.kept), 0.0F);
}

/// A code's value, decoded under scales of every size, is encoded as the same code again.
TEST(StateCodes, CodesSurviveARoundTrip) {
  for (const float kept : {1.0F, 0.3F, -2e-7F, 7e-30F, -4e35F}) {
    const rules::StateScale scale = rules::state_scale(kept);
    for (std::uint32_t code = 0; code < 256; ++code) {
      EXPECT_EQ(rules::Momentum8::code(rules::Momentum8::decoded(code, kept), scale), code) << kept;
      if (kept < 0) continue;
      EXPECT_EQ(rules::Variance8::code(rules::Variance8::decoded(code, kept), scale), code) << kept;
    }
  }
}

}  // namespace

}  // namespace octavo
