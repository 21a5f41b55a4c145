// SPDX-License-Identifier: Apache-2.0
// Arenas of a device whose queues run late and whose pages are either on the host or on the device: the fake device, as
// torch's `cuda`.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "octavo/device/arena.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/pager.h"
#include "tests/cpp/fake_managed.h"

namespace octavo {

namespace {

using fake::Movement;

class ArenaDeviceTest : public FakeManagedTest {
 protected:
  static constexpr std::int64_t kElements = 5000;
  static constexpr std::uint64_t kAsked = kElements * sizeof(float);

  static std::uint64_t held() {
    const auto page = static_cast<std::uint64_t>(page_bytes());
    return (kAsked + page - 1) / page * page;
  }

  static at::Tensor state(const std::shared_ptr<Arena>& arena) { return arena->zeros({kElements}, at::kFloat); }
  /// Enqueues a kernel that writes every element of the state.
  static void update(const at::Tensor& state) {
    const LaunchScope scope(state.device());
    auto* const values = state.mutable_data_ptr<float>();
    scope.kernels().divide_by_hits(scope.queue(), values, 1.0F, kElements, values);
  }
};

TEST_F(ArenaDeviceTest, ZerosAreWrittenAndWaitOnTheHost) {
  const auto arena = Arena::make({.device = device_});
  EXPECT_EQ(arena->kind(), ArenaKind::managed);
  const at::Tensor zeros = arena->zeros({kElements}, at::kFloat);
  EXPECT_EQ(zeros.device(), device_);
  EXPECT_TRUE(is_managed(zeros));
  EXPECT_EQ(arena->figures().held_bytes, held());
  EXPECT_EQ(figures().resident_bytes, 0U);
  const auto* const values = zeros.const_data_ptr<float>();
  EXPECT_TRUE(std::all_of(values, values + kElements, [](float value) { return value == 0; }));
}

TEST_F(ArenaDeviceTest, MemoryStaysUntilTheKernelsOfEveryStreamAreDone) {
  const auto arena = Arena::make({.device = device_});
  at::Tensor tensor = state(arena);
  update(tensor);
  const auto updated = make_event(FakeCudaGuard::kType, /*timing=*/false);  // two streams write to the tensor in turn
  updated->record(guard_.getStream(device_));
  {
    const c10::OptionalStreamGuard other(guard_.getStreamFromGlobalPool(device_, false));
    updated->block(guard_.getStream(device_));
    update(tensor);
    update(tensor);
  }
  tensor.reset();  // the fake device refuses to free memory that a command still uses
  EXPECT_EQ(arena->figures().held_bytes, 0U);
  EXPECT_EQ(figures().resident_bytes, 0U);
}

/// A device tells of a kernel's failure once: whoever waits next must go on with it.
TEST_F(ArenaDeviceTest, MemoryIsFreedWhereAKernelHasFailed) {
  const auto arena = Arena::make({.device = device_});
  at::Tensor tensor = state(arena);
  update(tensor);
  EXPECT_GT(figures().resident_bytes, 0U);
  guard_.fail_next_wait("a kernel has failed");
  testing::internal::CaptureStderr();
  tensor.reset();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("a kernel has failed"), std::string::npos);
  EXPECT_EQ(figures().resident_bytes, 0U);
}

TEST_F(ArenaDeviceTest, TheBudgetIsTorchsOutOfMemoryError) {
  const auto arena = Arena::make({.device = device_, .budget_bytes = held()});
  const at::Tensor fits = state(arena);
  try {
    state(arena);
    FAIL() << "expected an error";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string said = error.what_without_backtrace();
    const std::string size = std::to_string(held());
    const std::string words =
        c10::str("[device.arena] ", kAsked, " bytes (", size, " in whole pages) of managed ",
                 "memory on cuda:0 cannot be allocated: this arena holds ", size, " bytes, the budget is ", size);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }
  EXPECT_EQ(arena->figures().tensors, 1U);
}

TEST_F(ArenaDeviceTest, FilesAreForTheCpu) {
  EXPECT_THROW(Arena::make({.device = device_, .directory = "/tmp"}), Error);
  EXPECT_EQ(Arena::of(device_), Arena::of(c10::Device(FakeCudaGuard::kType)));
}

TEST_F(ArenaDeviceTest, WithoutAPrefetchEveryUpdateWaitsForItsPages) {
  const auto arena = Arena::make({.device = device_});
  const std::vector<at::Tensor> states = {state(arena), state(arena), state(arena)};
  guard_.synchronizeDevice(0);
  reset();
  for (const at::Tensor& tensor : states) update(tensor);
  EXPECT_EQ(figures().faults, states.size());
  EXPECT_EQ(figures().peak_resident_bytes, states.size() * held());
}

/// Updates six states in turn; the pager moves `window_bytes` of them together.
TEST_F(ArenaDeviceTest, ThePagerBringsPagesBeforeTheirUpdateAndSendsThemHomeBehindIt) {
  for (const std::uint64_t states_of_window : {1U, 2U}) {
    const auto arena = Arena::make({.device = device_});
    std::vector<std::vector<at::Tensor>> states;
    for (int i = 0; i < 6; ++i) states.push_back({state(arena)});
    guard_.synchronizeDevice(0);
    reset();

    Pager pager(device_, states, states_of_window * kAsked);
    for (std::size_t i = 0; i < states.size(); ++i) {
      pager.before(i);
      update(states[i][0]);
    }
    pager.finish();
    EXPECT_EQ(figures().faults, 0U);
    EXPECT_EQ(figures().resident_bytes, 0U);
    EXPECT_LE(figures().peak_resident_bytes, 3 * states_of_window * held());

    // the update's input and its output each count as one use
    EXPECT_EQ(movements_of(states[3][0].const_data_ptr()),
              (std::vector{Movement::prefetch, Movement::use, Movement::use, Movement::evict}));
  }
}

TEST_F(ArenaDeviceTest, ThePagerKeepsTheStatesOfAParameterTogether) {
  const auto arena = Arena::make({.device = device_});
  std::vector<std::vector<at::Tensor>> states;
  for (int i = 0; i < 5; ++i) states.push_back({state(arena), state(arena)});
  guard_.synchronizeDevice(0);
  reset();

  Pager pager(device_, states, kAsked);  // one state fills a window
  for (std::size_t i = 0; i < states.size(); ++i) {
    pager.before(i);
    for (const at::Tensor& one : states[i]) update(one);
  }
  pager.finish();
  EXPECT_EQ(figures().faults, 0U);
  EXPECT_EQ(figures().resident_bytes, 0U);
  EXPECT_LE(figures().peak_resident_bytes, 3 * 2 * held());
}

TEST_F(ArenaDeviceTest, ThePagerLeavesOtherMemoryAlone) {
  const auto arena = Arena::make({.device = device_});
  const at::Tensor managed = state(arena);
  guard_.synchronizeDevice(0);
  reset();
  Pager pager(device_, {{}, {}, {managed}, {}});
  for (std::size_t i = 0; i < 4; ++i) pager.before(i);
  pager.finish();
  EXPECT_EQ(figures().resident_bytes, 0U);
  EXPECT_EQ(records().size(), 2U);  // one to the device and one back
  Pager without(device_, {{}, {}});
  without.before(0);
  without.finish();
  EXPECT_EQ(records().size(), 2U);
}

}  // namespace

}  // namespace octavo
