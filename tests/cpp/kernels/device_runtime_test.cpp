// SPDX-License-Identifier: Apache-2.0
// The DeviceRuntime of the back end under test, without torch, where that back end has devices of its own. All of these
// tests also run on the fake devices of tests/fake_device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::uint64_t kCount = 1000, kGroup = 8;
constexpr std::array kKinds = {MemoryKind::device, MemoryKind::shared, MemoryKind::host};

/// values[i] += step for i below count.
constexpr const char* kAddTo = R"(
#include "octavo/kernels/sycl/device.h"
OCTAVO_KERNEL add_to(float* values, float step, std::uint64_t count) {
  const std::uint64_t i = octavo::sycl_code::item().get_global_id(0);
  if (i < count) values[i] += step;
}
)";

class DeviceRuntimeTest : public testing::Test {
 protected:
  using Memory = std::unique_ptr<void, std::function<void(void*)>>;
  using OwnedEvent = std::unique_ptr<void, void (*)(Event)>;

  void SetUp() override {
    if (host_backend().runtime == nullptr) GTEST_SKIP() << "the back end under test has no devices of its own";
    runtime_ = host_backend().runtime;
    queue_ = runtime_->create_queue(0, /*is_urgent=*/false);
  }
  void TearDown() override {
    if (runtime_ != nullptr) runtime_->wait(queue_);  // queues exist until the process ends
  }

  Memory allocate(MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment = 64) {
    Memory memory(runtime_->allocate(0, kind, bytes, alignment), [this](void* all) { runtime_->free(0, all); });
    EXPECT_NE(memory.get(), nullptr);
    return memory;
  }
  Memory allocate_on(int device) {
    void* all = runtime_->allocate(device, MemoryKind::device, kCount * sizeof(float), 64);
    EXPECT_NE(all, nullptr);
    return {all, [this, device](void* memory) { runtime_->free(device, memory); }};
  }
  OwnedEvent create_event() { return {runtime_->create_event(), runtime_->destroy_event}; }

  void upload(Queue queue, const Memory& to, const std::vector<float>& from) {
    runtime_->copy(queue, to.get(), from.data(), from.size() * sizeof(float));
    runtime_->wait(queue);
  }
  std::vector<float> download(Queue queue, const Memory& from) {
    std::vector<float> values(kCount);
    runtime_->copy(queue, values.data(), from.get(), kCount * sizeof(float));
    runtime_->wait(queue);
    return values;
  }

  /// Gives the queue some hundred milliseconds of work, however fast the device is.
  void keep_busy(Queue queue) {
    constexpr std::uint64_t kBytes = 64 << 20;
    for (Memory& memory : much_) {
      if (!memory) memory = allocate(MemoryKind::device, kBytes);
    }
    const auto copy = [&] { runtime_->copy(queue, much_[0].get(), much_[1].get(), kBytes); };
    const auto began = std::chrono::steady_clock::now();
    copy();
    runtime_->wait(queue);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const int copies = static_cast<int>(std::clamp(0.3 / took.count(), 4.0, 4000.0));
    for (int i = 0; i < copies; ++i) copy();
  }

  /// Enqueues values[0 .. kCount) += step, by a kernel of the table. `steps` holds the step kCount times.
  static void add_to(Queue queue, const Memory& steps, const Memory& values) {
    const Payload payload{nullptr, static_cast<std::uint8_t*>(steps.get())};
    host_backend()
        .of(BlockCodec::fp32)
        .decode(queue, payload, kCount, kCount, Store::add, static_cast<float*>(values.get()), nullptr);
  }

  /// Enqueues the same, by a user's own kernel.
  void add_to(Queue queue, Kernel kernel, float* values, float step) {
    const std::array arguments = {KernelArgument{&values, sizeof values, true},
                                  KernelArgument{&step, sizeof step, false},
                                  KernelArgument{&kCount, sizeof kCount, false}};
    runtime_->launch(queue, kernel, kCount / kGroup, kGroup, arguments.data(), arguments.size());
  }

  static void expect_error(ErrorCode code, const std::string& words, const std::function<void()>& body) {
    try {
      body();
      ADD_FAILURE() << "expected an Error with '" << words << "', got none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  const DeviceRuntime* runtime_ = nullptr;
  Queue queue_;
  std::array<Memory, 2> much_;
};

// ---- devices

TEST_F(DeviceRuntimeTest, DevicesAreThereAndSayWhatTheyAre) {
  ASSERT_GE(runtime_->device_count(), 1);
  for (int device = 0; device < runtime_->device_count(); ++device) {
    const DeviceFacts facts = runtime_->facts(device);
    EXPECT_FALSE(facts.name.empty() || facts.vendor.empty() || facts.driver.empty() || facts.platform.empty());
    EXPECT_GT(facts.total_bytes, 0U);
    EXPECT_GT(facts.compute_units, 0U);
    EXPECT_GE(facts.largest_group, 64U);  // octavo's own kernels have groups of at most 64
    EXPECT_GT(runtime_->free_bytes(device), 0U);
  }
}

TEST_F(DeviceRuntimeTest, ADeviceThatIsNotThereIsRefused) {
  const Memory memory = allocate(MemoryKind::shared, 64);
  for (const int device : {-1, runtime_->device_count()}) {
    const auto refused = [&](const std::function<void()>& body) {
      expect_error(ErrorCode::invalid_argument, "expected a device from 0 to ", body);
    };
    refused([&] { runtime_->facts(device); });
    refused([&] { runtime_->free_bytes(device); });
    refused([&] { runtime_->allocate(device, MemoryKind::shared, 64, 64); });
    refused([&] { runtime_->free(device, memory.get()); });
    refused([&] { runtime_->create_queue(device, false); });
  }
}

// ---- memory

TEST_F(DeviceRuntimeTest, MemoryOfEveryKindIsAligned) {
  for (const MemoryKind kind : kKinds) {
    for (const std::uint64_t alignment : {1, 64, 4096, 65536}) {
      const Memory one = allocate(kind, 100, alignment), other = allocate(kind, 100, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.get()) % alignment, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(other.get()) % alignment, 0U);
      EXPECT_NE(one.get(), other.get());
    }
  }
}

TEST_F(DeviceRuntimeTest, MoreMemoryThanThereIsIsNull) {
  for (const MemoryKind kind : kKinds) {
    EXPECT_EQ(runtime_->allocate(0, kind, std::uint64_t{1} << 60, 64), nullptr);
  }
}

TEST_F(DeviceRuntimeTest, CopiesGoBetweenAllKinds) {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i);
  for (const MemoryKind from : kKinds) {
    for (const MemoryKind to : kKinds) {
      const Memory source = allocate(from, kCount * sizeof(float)), target = allocate(to, kCount * sizeof(float));
      upload(queue_, source, values);
      runtime_->copy(queue_, target.get(), source.get(), kCount * sizeof(float));
      runtime_->copy(queue_, target.get(), values.data(), 0);
      EXPECT_EQ(download(queue_, target), values);
    }
  }
}

TEST_F(DeviceRuntimeTest, TheHostReadsSharedAndPageLockedMemoryInPlace) {
  for (const MemoryKind kind : {MemoryKind::shared, MemoryKind::host}) {
    const Memory memory = allocate(kind, kCount * sizeof(float));
    upload(queue_, memory, std::vector<float>(kCount, 3));
    EXPECT_EQ(static_cast<float*>(memory.get())[kCount - 1], 3);
  }
}

// ---- queues and events

TEST_F(DeviceRuntimeTest, AQueueIsIdleWhenItsWorkIsDone) {
  for (const bool is_urgent : {false, true}) {
    const Queue queue = runtime_->create_queue(0, is_urgent);
    EXPECT_TRUE(runtime_->is_idle(queue));
    keep_busy(queue);
    EXPECT_FALSE(runtime_->is_idle(queue));
    runtime_->wait(queue);
    EXPECT_TRUE(runtime_->is_idle(queue));
  }
}

TEST_F(DeviceRuntimeTest, AQueueRunsInOrder) {
  const Memory memory = allocate(MemoryKind::device, kCount * sizeof(float)),
               copied = allocate(MemoryKind::device, kCount * sizeof(float)),
               ones = allocate(MemoryKind::device, kCount * sizeof(float));
  upload(queue_, memory, std::vector<float>(kCount, 0));
  upload(queue_, ones, std::vector<float>(kCount, 1));
  for (int i = 0; i < 200; ++i) {  // each iteration uses the result of the one before
    add_to(queue_, ones, memory);
    runtime_->copy(queue_, copied.get(), memory.get(), kCount * sizeof(float));
    runtime_->copy(queue_, memory.get(), copied.get(), kCount * sizeof(float));
  }
  EXPECT_EQ(download(queue_, memory), std::vector<float>(kCount, 200));
}

TEST_F(DeviceRuntimeTest, AnEventIsDoneWhenWhatCameBeforeItIs) {
  const OwnedEvent event = create_event();
  for (int recorded = 0; recorded < 2; ++recorded) {
    keep_busy(queue_);
    runtime_->record(event.get(), queue_);
    EXPECT_FALSE(runtime_->is_done(event.get()));
    runtime_->wait_for(event.get());
    EXPECT_TRUE(runtime_->is_done(event.get()));
    EXPECT_TRUE(runtime_->is_idle(queue_));
  }
}

TEST_F(DeviceRuntimeTest, AnEventThatWasNeverRecordedHoldsNobodyUp) {
  const OwnedEvent event = create_event();
  EXPECT_TRUE(runtime_->is_done(event.get()));
  runtime_->wait_for(event.get());
  runtime_->block(queue_, event.get());
  runtime_->wait(queue_);
}

TEST_F(DeviceRuntimeTest, AQueueWaitsForAnotherOnesEvent) {
  const Queue other = runtime_->create_queue(0, false);
  const Memory memory = allocate(MemoryKind::shared, kCount * sizeof(float));
  upload(queue_, memory, std::vector<float>(kCount, 1));
  const std::vector<float> late(kCount, 2);
  const Memory source = allocate(MemoryKind::host, kCount * sizeof(float));  // from which copies wait for nothing
  std::ranges::copy(late, static_cast<float*>(source.get()));
  keep_busy(queue_);
  runtime_->copy(queue_, memory.get(), source.get(), kCount * sizeof(float));
  const OwnedEvent event = create_event();
  runtime_->record(event.get(), queue_);
  runtime_->block(other, event.get());
  EXPECT_FALSE(runtime_->is_idle(other)) << "the first queue ended too early for this test to say anything";
  EXPECT_EQ(download(other, memory), late);
}

TEST_F(DeviceRuntimeTest, EventsMeasureTheTimeBetweenThem) {
  const OwnedEvent start = create_event(), end = create_event();
  const auto before = std::chrono::steady_clock::now();
  runtime_->record(start.get(), queue_);
  keep_busy(queue_);
  runtime_->record(end.get(), queue_);
  runtime_->wait(queue_);
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - before;
  const double elapsed = runtime_->elapsed_ms(start.get(), end.get());
  EXPECT_GT(elapsed, 0.1 * wall.count());
  EXPECT_LT(elapsed, wall.count() + 1);
  EXPECT_DOUBLE_EQ(runtime_->elapsed_ms(end.get(), start.get()), -elapsed);
}

TEST_F(DeviceRuntimeTest, NoTimeBetweenEventsThatWereNotRecorded) {
  const OwnedEvent recorded = create_event(), not_recorded = create_event();
  runtime_->record(recorded.get(), queue_);
  runtime_->wait(queue_);
  const std::string words = "needs two recorded events";
  expect_error(ErrorCode::invalid_argument, words, [&] { runtime_->elapsed_ms(recorded.get(), not_recorded.get()); });
  expect_error(ErrorCode::invalid_argument, words, [&] { runtime_->elapsed_ms(not_recorded.get(), recorded.get()); });
}

// ---- several devices

TEST_F(DeviceRuntimeTest, EachDeviceHasItsOwnMemoryAndQueues) {
  std::vector<Queue> queues;
  std::vector<Memory> memories, steps;
  for (int device = 0; device < runtime_->device_count(); ++device) {
    queues.push_back(runtime_->create_queue(device, /*is_urgent=*/false));
    EXPECT_EQ(queues.back().device, device);
    memories.push_back(allocate_on(device));
    steps.push_back(allocate_on(device));
    upload(queues.back(), memories.back(), std::vector<float>(kCount, 1));
    upload(queues.back(), steps.back(), std::vector<float>(kCount, static_cast<float>(device)));
  }
  for (std::size_t device = 0; device < queues.size(); ++device)
    add_to(queues[device], steps[device], memories[device]);
  for (std::size_t device = 0; device < queues.size(); ++device) {
    EXPECT_EQ(download(queues[device], memories[device]), std::vector<float>(kCount, 1 + static_cast<float>(device)));
  }
}

TEST_F(DeviceRuntimeTest, AQueueWaitsForAnEventOfAnotherDevice) {
  const int last = runtime_->device_count() - 1;
  const Queue other = runtime_->create_queue(last, /*is_urgent=*/false);
  const Memory staged = allocate(MemoryKind::host, kCount * sizeof(float)), target = allocate_on(last);
  const Memory source = allocate(MemoryKind::device, kCount * sizeof(float));
  upload(queue_, source, std::vector<float>(kCount, 7));
  keep_busy(queue_);
  runtime_->copy(queue_, staged.get(), source.get(), kCount * sizeof(float));
  const OwnedEvent event = create_event();
  runtime_->record(event.get(), queue_);
  runtime_->block(other, event.get());
  runtime_->copy(other, target.get(), staged.get(), kCount * sizeof(float));
  EXPECT_EQ(download(other, target), std::vector<float>(kCount, 7));
}

// ---- kernels of a user's own

class UserKernelTest : public DeviceRuntimeTest {
 protected:
  void SetUp() override {
    DeviceRuntimeTest::SetUp();
    if (runtime_ != nullptr && runtime_->compile == nullptr) GTEST_SKIP() << "the back end under test compiles nothing";
  }
};

TEST_F(UserKernelTest, OnTheCallingThreadAKernelRunsOnOrdinaryMemory) {
  const Kernel kernel = runtime_->compile({}, kAddTo, "add_to");
  std::vector<float> values(kCount, 1);
  add_to({}, kernel, values.data(), 2);
  EXPECT_EQ(values, std::vector<float>(kCount, 3));
  const std::vector<float> others(kCount, 5);
  runtime_->copy(runtime_->host_queue(), values.data(), others.data(), kCount * sizeof(float));
  add_to(runtime_->host_queue(), kernel, values.data(), 1);
  runtime_->wait(runtime_->host_queue());
  EXPECT_EQ(values, std::vector<float>(kCount, 6));
}

TEST_F(UserKernelTest, NoGroupsAreNoWork) {
  const Kernel kernel = runtime_->compile(queue_, kAddTo, "add_to");
  runtime_->launch(queue_, kernel, 0, kGroup, nullptr, 0);
  EXPECT_TRUE(runtime_->is_idle(queue_));
}

TEST_F(UserKernelTest, ASourceThatDoesNotCompileIsRefusedInTheCompilersWords) {
  expect_error(ErrorCode::invalid_argument, "add_to does not compile for",
               [&] { runtime_->compile(queue_, "OCTAVO_KERNEL add_to(float* x) { *x = nothing; }", "add_to"); });
  std::string wrong = kAddTo;
  wrong.replace(wrong.find("+= step"), 7, "+= stop");
  expect_error(ErrorCode::invalid_argument, "undeclared identifier 'stop'",
               [&] { runtime_->compile(queue_, wrong, "add_to"); });
  expect_error(ErrorCode::invalid_argument, "other", [&] { runtime_->compile(queue_, kAddTo, "other"); });
}

TEST_F(UserKernelTest, ArgumentsAndGroupsThatAreNotTheKernelsAreRefused) {
  const Kernel kernel = runtime_->compile(queue_, kAddTo, "add_to");
  const Memory memory = allocate(MemoryKind::shared, kCount * sizeof(float));
  void* const pointer = memory.get();
  const KernelArgument argument{&pointer, sizeof pointer, true};
  expect_error(ErrorCode::invalid_argument, "expected 3 arguments for add_to, got 1",
               [&] { runtime_->launch(queue_, kernel, 1, kGroup, &argument, 1); });
  const double wide = 1;
  const std::array wrong = {argument, KernelArgument{&wide, sizeof wide, false},
                            KernelArgument{&kCount, sizeof kCount, false}};
  expect_error(ErrorCode::invalid_argument,
               "add_to cannot be launched with a pointer, a value of 8 bytes, a value of 8 bytes",
               [&] { runtime_->launch(queue_, kernel, 1, kGroup, wrong.data(), wrong.size()); });
  const float step = 1;
  const std::array right = {argument, KernelArgument{&step, sizeof step, false},
                            KernelArgument{&kCount, sizeof kCount, false}};
  const std::uint64_t too_many = 2ULL * runtime_->facts(0).largest_group;
  expect_error(ErrorCode::invalid_argument, "groups of " + std::to_string(too_many) + " items",
               [&] { runtime_->launch(queue_, kernel, 1, too_many, right.data(), right.size()); });
}

}  // namespace

}  // namespace octavo
