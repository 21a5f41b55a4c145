// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/counter_random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace octavo::rules {

namespace {

constexpr std::uint64_t kDraws = 1U << 20;

/// Returns the correlation of the draws of two streams, in units of the standard deviation that independent draws have.
template <class A, class B>
double correlation(A a, B b) {
  constexpr double kMean = 32767.5, kVariance = (65536.0 * 65536.0 - 1) / 12;
  double sum = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) sum += (a(i) - kMean) * (b(i) - kMean);
  return sum / kVariance / std::sqrt(static_cast<double>(kDraws));
}

auto stream(std::uint64_t key, std::uint64_t offset = 0) {
  return [=](std::uint64_t i) { return static_cast<double>(random_bits(key, i + offset)); };
}

/// The bits are a contract: every back end draws these.
TEST(CounterRandom, TheBitsStay) {
  EXPECT_EQ(derive_key(0, 0), 0xE220A8397B1DCDAFU);  // splitmix64's first number from seed 0
  EXPECT_EQ(random_base(0x123456789ABCDEF0U, 5), 0xA3E4F837U);
  EXPECT_EQ(random_word(0xDEADBEEFU, 0), 0xD1BCBABCU);
  EXPECT_EQ(random_word(0xDEADBEEFU, 31), 0x963662B4U);
  const std::uint32_t word = random_word(random_base(7, 1), 3);
  EXPECT_EQ(random_bits(7, 64 + 3), word & 0xFFFFU);
  EXPECT_EQ(random_bits(7, 64 + 32 + 3), word >> 16);
}

TEST(CounterRandom, IsUniform) {
  for (const std::uint64_t key : {derive_key(0, 0), derive_key(0, 1), derive_key(12345, 6)}) {
    std::array<int, 256> high{}, low{};
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      ++high[random_bits(key, i) >> 8];
      ++low[random_bits(key, i) & 255];
    }
    for (const auto& counts : {high, low}) {
      double chi_squared = 0;
      for (const int count : counts) chi_squared += std::pow(count - kDraws / 256.0, 2) / (kDraws / 256.0);
      EXPECT_NEAR(chi_squared, 255, 5 * std::sqrt(2 * 255.0));
    }
  }
}

TEST(CounterRandom, NeighboursAreIndependent) {
  const std::uint64_t key = derive_key(1, 2);
  for (const std::uint64_t distance : {1, 2, 3, 4, 8, 16, 31, 32, 33, 63, 64, 128, 4096}) {
    EXPECT_LT(std::abs(correlation(stream(key), stream(key, distance))), 4.5) << "distance " << distance;
  }
}

TEST(CounterRandom, SuccessiveStepsAreIndependent) {
  for (const std::uint64_t other : {1, 2, 3, 4, 1024}) {
    EXPECT_LT(std::abs(correlation(stream(derive_key(9, 0)), stream(derive_key(9, other)))), 4.5) << "step " << other;
    EXPECT_LT(std::abs(correlation(stream(derive_key(9, 0)), stream(derive_key(9 + other, 0)))), 4.5) << other;
  }
}

/// One element draws uniformly over the steps.
TEST(CounterRandom, AnElementDrawsUniformlyOverSteps) {
  for (const std::uint64_t element : {0, 1, 77}) {
    const auto drawn = [=](std::uint64_t step) {
      return static_cast<double>(random_bits(derive_key(5, step), element));
    };
    double sum = 0;
    for (std::uint64_t step = 0; step < kDraws; ++step) sum += drawn(step);
    EXPECT_NEAR(sum / kDraws, 32767.5, 5 * 65536 / std::sqrt(12.0 * kDraws));
    EXPECT_LT(std::abs(correlation(drawn, [&](std::uint64_t step) { return drawn(step + 1); })), 4.5);
  }
}

TEST(CounterRandom, EveryBitOfTheKeyChangesHalfOfTheBase) {
  for (int bit = 0; bit < 64; ++bit) {
    int changed = 0;
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const std::uint64_t key = derive_key(11, i);
      changed += std::popcount(random_base(key, i) ^ random_base(key ^ 1ULL << bit, i));
    }
    EXPECT_NEAR(changed / 4096.0 / 32, 0.5, 0.02) << "bit " << bit;
  }
}

/// The words of a group come from one base. Whether one element is rounded up must not depend on whether another one
/// is, however often elements are rounded up.
TEST(CounterRandom, ElementsOfAGroupAreIndependent) {
  constexpr std::uint64_t kGroups = 1U << 16;
  for (const double fraction : {0.02, 0.1, 0.5, 0.9}) {
    const auto threshold = static_cast<std::uint32_t>(fraction * 65536);
    std::array<std::array<int, kRandomGroup>, kRandomGroup> both{};
    for (std::uint64_t group = 0; group < kGroups; ++group) {
      std::array<std::uint64_t, kRandomGroup> up;
      std::size_t ups = 0;
      for (std::uint64_t i = 0; i < kRandomGroup; ++i) {
        if (random_bits(derive_key(3, 4), kRandomGroup * group + i) < threshold) up[ups++] = i;
      }
      for (std::size_t i = 0; i < ups; ++i) {
        for (std::size_t j = i + 1; j < ups; ++j) ++both[up[i]][up[j]];
      }
    }
    const double expected = fraction * fraction * kGroups, deviation = std::sqrt(expected * (1 - fraction * fraction));
    for (std::uint64_t i = 0; i < kRandomGroup; ++i) {
      for (std::uint64_t j = i + 1; j < kRandomGroup; ++j) {
        EXPECT_NEAR(both[i][j], expected, 5.5 * deviation) << "elements " << i << " and " << j;
      }
    }
  }
}

}  // namespace

}  // namespace octavo::rules
