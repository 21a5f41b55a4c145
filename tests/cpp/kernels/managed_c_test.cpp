// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/managed_c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

namespace octavo {

namespace {

constexpr long kCFloats = 100003;

bool managed_error_says(const char* part) { return std::string(octavo_last_error()).find(part) != std::string::npos; }

TEST(ManagedC, MemoryIsFilledMovedAndGivenBack) {
  auto* const values = static_cast<float*>(cget_managed_ptr(kCFloats * sizeof(float)));
  ASSERT_NE(values, nullptr) << octavo_last_error();
  for (const int device : {0, -1}) {
    cfill_fp32(values, nullptr, -1.25F, kCFloats);
    cprefetch(values, kCFloats * sizeof(float), device);
    EXPECT_STREQ(octavo_last_error(), "");
    EXPECT_EQ(std::count(values, values + kCFloats, -1.25F), kCFloats);
    auto* const bytes = reinterpret_cast<unsigned char*>(values) + 1;
    cfill_uint8(bytes, nullptr, 200, 4097);
    EXPECT_EQ(std::count(bytes, bytes + 4097, 200), 4097);
    EXPECT_EQ(std::count(values + 1025, values + kCFloats, -1.25F), kCFloats - 1025);
  }
  cfill_fp32(values + 1, nullptr, 0, kCFloats);
  EXPECT_TRUE(managed_error_says("bytes from there on")) << octavo_last_error();
  cprefetch(values, kCFloats * sizeof(float) + 1, 0);
  EXPECT_TRUE(managed_error_says("bytes from there on")) << octavo_last_error();
  cfree_managed_ptr(values);
  EXPECT_STREQ(octavo_last_error(), "");
}

/// One thread is given the memory that another one has just given back.
TEST(ManagedC, ThreadsMayAskAndGiveBackAtOnce) {
  std::atomic<int> failed = 0;
  const auto ask_and_give_back = [&] {
    for (int i = 0; i < 5000; ++i) {
      cfree_managed_ptr(cget_managed_ptr(4096));
      if (*octavo_last_error() != '\0') ++failed;
    }
  };
  {
    const std::jthread first(ask_and_give_back), second(ask_and_give_back);
  }
  EXPECT_EQ(failed, 0);
}

TEST(ManagedC, WhatFailsSaysWhyAndThrowsNothing) {
  EXPECT_EQ(cget_managed_ptr(std::size_t{1} << 60), nullptr);
  EXPECT_TRUE(managed_error_says("1152921504606846976 bytes of managed memory cannot be allocated"))
      << octavo_last_error();
  EXPECT_EQ(cget_managed_ptr(0), nullptr);
  EXPECT_TRUE(managed_error_says("expected at least 1")) << octavo_last_error();
  float value = 7;
  cfree_managed_ptr(&value);
  EXPECT_TRUE(managed_error_says("expected a pointer that cget_managed_ptr gave")) << octavo_last_error();
  cfill_fp32(&value, nullptr, 1, -1);
  EXPECT_TRUE(managed_error_says("expected a count of at least 0, got -1")) << octavo_last_error();
  cprefetch(&value, sizeof value, 3);
  EXPECT_TRUE(managed_error_says("expected device 0")) << octavo_last_error();
  cfill_fp32(nullptr, nullptr, 1, 5);
  EXPECT_TRUE(managed_error_says("expected memory of cget_managed_ptr, got null")) << octavo_last_error();
  cprefetch(nullptr, 8, 0);
  EXPECT_TRUE(managed_error_says("expected memory of cget_managed_ptr, got null")) << octavo_last_error();
  auto* const four = static_cast<float*>(cget_managed_ptr(4 * sizeof(float)));
  ASSERT_NE(four, nullptr) << octavo_last_error();
  cfill_fp32(four, nullptr, 2, 4);
  for (const long many : {1L << 62, (1L << 62) + 2}) {  // whose bytes do not fit into 64 bits
    cfill_fp32(four, nullptr, 3, many);
    EXPECT_TRUE(managed_error_says("expected at most 16 bytes")) << octavo_last_error();
  }
  EXPECT_EQ(four[0], 2);
  cfree_managed_ptr(four);
  cfill_uint8(nullptr, nullptr, 1, 0);
  EXPECT_STREQ(octavo_last_error(), "");
  EXPECT_EQ(value, 7);
  cfree_managed_ptr(nullptr);
  EXPECT_STREQ(octavo_last_error(), "");
}

}  // namespace

}  // namespace octavo
