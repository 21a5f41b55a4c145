// SPDX-License-Identifier: Apache-2.0
// The fake devices themselves: they reveal each mistake that they are meant to reveal.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "octavo/kernels/error.h"
#include "octavo/kernels/plugin.h"

namespace octavo {

namespace {

constexpr std::uint64_t kElements = 1000, kBytes = kElements * sizeof(float);

class FakeDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(plugin("fake").table, nullptr) << plugin("fake").reason;
    queue_ = runtime().create_queue(0, /*is_urgent=*/false);
  }
  static const KernelTable& table() { return *plugin("fake").table; }
  static const DeviceRuntime& runtime() { return *table().runtime; }

  static float* allocate(int device, MemoryKind kind) {
    return static_cast<float*>(runtime().allocate(device, kind, kBytes, 64));
  }
  static void add(Queue queue, const void* steps, float* values) {
    const Payload payload{nullptr, static_cast<std::uint8_t*>(const_cast<void*>(steps))};
    table().of(BlockCodec::fp32).decode(queue, payload, kElements, kElements, Store::add, values, nullptr);
  }
  static void expect_error(const std::string& words, const std::function<void()>& body) {
    try {
      body();
      ADD_FAILURE() << "expected an Error with '" << words << "', got none";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  Queue queue_;
};

// The test that uses this needs the race, so the thread sanitizer must not report it.
__attribute__((no_sanitize("thread"), noinline)) float read_without_a_wait(const float* value) {
  return *static_cast<const volatile float*>(value);
}

TEST_F(FakeDeviceTest, AMissingWaitReadsWhatWasThereBefore) {
  float* const values = allocate(0, MemoryKind::shared);
  const std::vector<float> ones(kElements, 1);
  runtime().copy(queue_, values, ones.data(), kBytes);
  EXPECT_EQ(read_without_a_wait(values), 0);
  runtime().wait(queue_);
  EXPECT_EQ(values[0], 1);
  runtime().free(0, values);
}

using FakeDeviceDeathTest = FakeDeviceTest;

TEST_F(FakeDeviceDeathTest, TheHostCannotReadPrivateMemory) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const float* const values = allocate(0, MemoryKind::device);
  EXPECT_DEATH(std::fprintf(stderr, "%f", static_cast<double>(values[0])), "");
}

TEST_F(FakeDeviceTest, KernelsTakeMemoryOfTheirDeviceAlone) {
  const int other = 1;
  ASSERT_GE(runtime().device_count(), 2);
  float* const here = allocate(0, MemoryKind::device);
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::shared}) {
    float* const there = allocate(other, kind);
    expect_error("a command of device 0 uses memory of device 1", [&] { add(queue_, there, here); });
    expect_error("a command of device 0 uses memory of device 1", [&] { runtime().copy(queue_, here, there, kBytes); });
    runtime().free(other, there);
  }
  std::vector<float> ordinary(kElements);
  expect_error("a kernel of device 0 is given ordinary memory", [&] { add(queue_, here, ordinary.data()); });
  runtime().free(0, here);
}

TEST_F(FakeDeviceTest, ACopyBeyondItsMemoryIsRefused) {
  float* const values = allocate(0, MemoryKind::device);
  const std::vector<float> more(kElements + 1);
  expect_error("uses 4004 bytes of an allocation of 4000",
               [&] { runtime().copy(queue_, values, more.data(), kBytes + 4); });
  runtime().free(0, values);
}

TEST_F(FakeDeviceTest, MemoryThatACommandUsesIsNotFreed) {
  float* const values = allocate(0, MemoryKind::device);
  const std::vector<float> ones(kElements, 1);
  runtime().copy(queue_, values, ones.data(), kBytes);
  expect_error("is freed while a command that uses it has not run", [&] { runtime().free(0, values); });
  runtime().wait(queue_);
  runtime().free(0, values);
}

TEST_F(FakeDeviceTest, BeyondTheBudgetThereIsNoMemory) {
  const std::uint64_t free = runtime().free_bytes(1);
  void* const all = runtime().allocate(1, MemoryKind::device, free, 64);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(runtime().free_bytes(1), 0U);
  EXPECT_EQ(runtime().allocate(1, MemoryKind::shared, 1, 64), nullptr);
  void* const on_host = runtime().allocate(1, MemoryKind::host, 1, 64);
  EXPECT_NE(on_host, nullptr);
  runtime().free(1, on_host);
  runtime().free(1, all);
  EXPECT_EQ(runtime().free_bytes(1), free);
}

}  // namespace

}  // namespace octavo
