// SPDX-License-Identifier: Apache-2.0
// A compressor's state in managed memory: on the CPU, and on the fake device, as torch's `cuda`.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "octavo/comm/state/state_store.h"
#include "octavo/device/arena.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/fake_managed.h"

namespace octavo {

namespace {

using fake::Movement;

constexpr Role kKept = {"kept", Extent::whole, at::kFloat};
constexpr std::uint64_t kPagedCount = 5000;

StateStore paged_store(const std::string& directory = "") {
  return {{{"a", kPagedCount, false}}, {kKept}, 0, 2, StatePaging{.is_paged = true, .directory = directory}};
}

/// Makes a step that keeps `value` for every element.
void keep_everywhere(StateStore& state, float value) {
  std::fill_n(state.at(0, kKept).next<float>(kPagedCount, c10::kCPU), kPagedCount, value);
  state.set_sent(0, true);
  state.end_step(/*commit=*/true);
}

TEST(PagedState, BothGenerationsAreManagedAndGoWithTheStore) {
  const ArenaFigures before = arena_figures(ArenaKind::host);
  {
    StateStore state = paged_store();
    keep_everywhere(state, 1);
    keep_everywhere(state, 2);
    EXPECT_EQ(arena_figures(ArenaKind::host).asked_bytes, before.asked_bytes + 2 * kPagedCount * sizeof(float));
    EXPECT_TRUE(is_managed(state.save().at("kept/a")));
    EXPECT_TRUE(at::equal(state.save().at("kept/a"), at::full({kPagedCount}, 2.0F)));
  }
  EXPECT_EQ(arena_figures(ArenaKind::host).tensors, before.tensors);
}

TEST(PagedState, WhatIsLoadedIsManaged) {
  StateStore state = paged_store();
  state.load({{"kept/a", at::full({kPagedCount}, 3.0F)}});
  EXPECT_TRUE(is_managed(state.save().at("kept/a")));
  EXPECT_EQ(state.at(0, kKept).now<float>(c10::kCPU)[kPagedCount - 1], 3);
  state.load_world({{{"kept/a", at::full({kPagedCount}, 3.0F)}}, {}, {{"kept/a", at::full({kPagedCount}, 6.0F)}}});
  EXPECT_TRUE(is_managed(state.save().at("kept/a")));
  EXPECT_TRUE(at::equal(state.save().at("kept/a"), at::full({kPagedCount}, 3.0F)));
}

TEST(PagedState, FilesLieWhereTheyAreToAndNowhereElse) {
  const ArenaFigures before = arena_figures(ArenaKind::file);
  StateStore state = paged_store(std::filesystem::temp_directory_path());
  keep_everywhere(state, 1);
  EXPECT_EQ(arena_figures(ArenaKind::file).asked_bytes, before.asked_bytes + kPagedCount * sizeof(float));
  EXPECT_THROW(paged_store("/nowhere/at/all"), Error);
  EXPECT_THROW(StateMemory({.is_paged = false, .directory = "/tmp"}), Error);
}

class PagedStateDeviceTest : public FakeManagedTest {
 protected:
  /// Makes a step on the device; its kernel reads the current generation and writes the next one.
  void step(StateStore& state, bool is_first = false) const {
    const at::Tensor gradient = Arena::of(device_)->zeros({kPagedCount}, at::kFloat);
    state.prefetch(0);
    Versioned& kept = state.at(0, kKept);
    const auto* const now = is_first ? gradient.const_data_ptr<float>() : kept.now<float>(device_);
    auto* const next = kept.next<float>(kPagedCount, device_);
    const LaunchScope scope(device_);
    scope.kernels().add_owed(scope.queue(), {now}, 1.0F, nullptr, nullptr, kPagedCount, next);
    state.evict(0);
    state.set_sent(0, true);
    state.end_step(/*commit=*/true);
    guard_.synchronizeDevice(0);
  }
};

TEST_F(PagedStateDeviceTest, PagesComeBeforeABucketAndGoHomeBehindIt) {
  StateStore state = paged_store();
  step(state, /*is_first=*/true);
  step(state);  // now both generations exist
  const at::Tensor now = state.save().at("kept/a");
  EXPECT_EQ(now.device(), device_);
  reset();
  step(state);
  EXPECT_EQ(movements_of(now.const_data_ptr()), (std::vector{Movement::prefetch, Movement::use, Movement::evict}));
  const at::Tensor next = state.save().at("kept/a");
  EXPECT_EQ(movements_of(next.const_data_ptr()), (std::vector{Movement::prefetch, Movement::use, Movement::evict}));
}

TEST_F(PagedStateDeviceTest, OtherMemoryIsLeftAlone) {
  const at::Tensor managed = Arena::of(device_)->zeros({kPagedCount}, at::kFloat);
  const StateMemory paged({.is_paged = true}), unpaged;
  guard_.synchronizeDevice(0);
  reset();
  unpaged.prefetch(managed);
  unpaged.evict(managed);
  paged.prefetch(at::zeros({4}));
  paged.evict(at::Tensor());
  EXPECT_TRUE(records().empty());
  paged.prefetch(managed);
  EXPECT_EQ(records().size(), 1U);
}

}  // namespace

}  // namespace octavo
