// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "octavo/device/pinned.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

std::uint64_t page() { return static_cast<std::uint64_t>(page_bytes()); }

void expect_arena_error(ErrorCode code, const std::string& words, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "expected an Error with '" << words << "', got none";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

void expect_figures(const ArenaFigures& figures, std::uint64_t asked, std::uint64_t held, std::uint64_t tensors) {
  EXPECT_EQ(figures.asked_bytes, asked);
  EXPECT_EQ(figures.held_bytes, held);
  EXPECT_EQ(figures.tensors, tensors);
}

TEST(ArenaTest, FiguresTellWhatIsAskedAndWhatIsHeldAndAreZeroAtTheEnd) {
  const auto before = arena_figures(ArenaKind::host);
  const auto arena = Arena::make({});
  {
    const at::Tensor small = arena->zeros({3}, at::kByte);
    at::Tensor large = arena->empty({1000, 3}, at::kFloat);
    expect_figures(arena->figures(), 12003, 4 * page(), 2);
    EXPECT_EQ(small.sum().item<std::int64_t>(), 0);
    const at::Tensor view = large.t()[1];
    large.reset();
    expect_figures(arena->figures(), 12003, 4 * page(), 2);  // the view still holds the tensor's memory
    const auto now = arena_figures(ArenaKind::host);
    expect_figures(now, before.asked_bytes + 12003, before.held_bytes + 4 * page(), before.tensors + 2);
  }
  expect_figures(arena->figures(), 0, 0, 0);
  EXPECT_EQ(arena->figures().peak_asked_bytes, 12003U);
  EXPECT_EQ(arena->figures().peak_held_bytes, 4 * page());
  arena->reset_peak();
  EXPECT_EQ(arena->figures().peak_held_bytes, 0U);
  const auto after = arena_figures(ArenaKind::host);
  expect_figures(after, before.asked_bytes, before.held_bytes, before.tensors);
}

TEST(ArenaTest, ATensorHoldsItsArena) {
  at::Tensor tensor = Arena::make({})->zeros({5}, at::kFloat);
  tensor.add_(1);
  EXPECT_EQ(tensor.sum().item<float>(), 5);
}

TEST(ArenaTest, ZerosLikeLieInTheOrderOfTheTensor) {
  const auto arena = Arena::make({});
  const at::Tensor tensor = at::empty({2, 3, 4}, at::kBFloat16);
  for (const at::Tensor& like : {tensor, tensor.permute({2, 0, 1}), tensor.transpose(0, 1)}) {
    const at::Tensor zeros = arena->zeros_like(like, at::kFloat);
    EXPECT_EQ(zeros.sizes(), like.sizes());
    EXPECT_EQ(zeros.strides(), like.strides());
    EXPECT_EQ(zeros.scalar_type(), at::kFloat);
    EXPECT_EQ(zeros.count_nonzero().item<std::int64_t>(), 0);
  }
  const at::Tensor expanded = at::empty({1, 4}).expand({3, 4});
  const at::Tensor dense = arena->zeros_like(expanded, at::kByte);
  EXPECT_TRUE(dense.is_contiguous());
  const at::Tensor transposed_part = at::empty({4, 9}).narrow(1, 0, 3).t();
  EXPECT_TRUE(arena->zeros_like(transposed_part, at::kByte).is_contiguous());
  EXPECT_EQ(arena->figures().asked_bytes, 12U);
}

TEST(ArenaTest, ATensorWithoutElementsHoldsNothing) {
  const auto arena = Arena::make({.budget_bytes = 1});
  const at::Tensor nothing = arena->zeros({0, 7}, at::kFloat);
  EXPECT_EQ(nothing.sizes(), at::IntArrayRef({0, 7}));
  EXPECT_FALSE(is_managed(nothing));
  expect_figures(arena->figures(), 0, 0, 0);
  prefetch(nothing);
}

TEST(ArenaTest, TheBudgetIsHardAndARefusalChangesNothing) {
  const auto arena = Arena::make({.budget_bytes = 3 * page()});
  const auto bytes = [](std::uint64_t count) { return std::vector<std::int64_t>{static_cast<std::int64_t>(count)}; };
  const at::Tensor held = arena->zeros(bytes(page() + 1), at::kByte);
  const ArenaFigures before = arena->figures();
  const std::string words = std::to_string(page() + 1) + " bytes (" + std::to_string(2 * page()) +
                            " in whole pages) of managed memory on cpu cannot be allocated: this arena holds " +
                            std::to_string(2 * page()) + " bytes, the budget is " + std::to_string(3 * page());
  for (int i = 0; i < 3; ++i) {
    expect_arena_error(ErrorCode::out_of_memory, words, [&] { arena->zeros(bytes(page() + 1), at::kByte); });
    expect_figures(arena->figures(), before.asked_bytes, before.held_bytes, 1);
    EXPECT_EQ(arena->figures().peak_held_bytes, before.peak_held_bytes);
  }
  const at::Tensor fits = arena->zeros(bytes(page()), at::kByte);
  expect_figures(arena->figures(), 2 * page() + 1, 3 * page(), 2);
}

TEST(ArenaTest, WhatTheSystemRefusesChangesNothing) {
  const auto arena = Arena::make({});
  const auto total = arena_figures(ArenaKind::host).held_bytes;
  expect_arena_error(ErrorCode::out_of_memory, "the system has no more to give",
                     [&] { arena->zeros({std::int64_t{1} << 60}, at::kByte); });
  expect_figures(arena->figures(), 0, 0, 0);
  EXPECT_EQ(arena->figures().peak_held_bytes, 0U);
  EXPECT_EQ(arena_figures(ArenaKind::host).held_bytes, total);
}

TEST(ArenaTest, ATensorThatCannotBeIsRefusedInASentence) {
  const auto arena = Arena::make({});
  const auto code_of = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    try {
      arena->zeros(shape, dtype);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("[device.arena] "), 0U) << error.what();
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of({-1}, at::kFloat), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({1LL << 62}, at::kFloat), ErrorCode::out_of_memory);
  EXPECT_EQ(code_of({5}, at::kQUInt8), ErrorCode::wrong_type);
}

TEST(ArenaTest, MemoryIsKnownByEveryAddressInsideWhileItLives) {
  at::Tensor tensor = Arena::make({})->zeros({1000}, at::kFloat);
  const auto* const first = static_cast<const char*>(tensor.const_data_ptr());
  for (const int at : {0, 1, 3999}) {
    const auto range = managed_range(first + at);
    ASSERT_TRUE(range.has_value()) << at;
    EXPECT_EQ(range->first, first);
    EXPECT_EQ(range->bytes, 4000U);
    EXPECT_EQ(range->device, c10::Device(c10::kCPU));
    EXPECT_EQ(range->kind, ArenaKind::host);
  }
  EXPECT_FALSE(managed_range(first + 4000).has_value());
  EXPECT_FALSE(managed_range(first - 1).has_value());
  EXPECT_TRUE(is_managed(tensor[500]));
  EXPECT_FALSE(is_managed(at::ones({1000})));
  tensor.reset();
  EXPECT_FALSE(managed_range(first).has_value());
}

TEST(ArenaTest, FilesHoldTensorsAndAreNotTheHostsFigures) {
  const std::string directory = std::filesystem::temp_directory_path().string();
  const auto host = arena_figures(ArenaKind::host);
  const auto arena = Arena::make({.directory = directory});
  EXPECT_EQ(arena->kind(), ArenaKind::file);
  at::Tensor tensor = arena->zeros({513, 1000}, at::kFloat);
  EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
  const at::Tensor expected = at::ones({513, 1000}).cumsum(1);
  tensor.copy_(expected);
  for (const at::Tensor& part : {tensor, tensor[1], tensor.narrow(1, 10, 100), tensor.t()}) {
    evict(part);
    EXPECT_TRUE(tensor.equal(expected));
    prefetch(part);
    EXPECT_TRUE(tensor.equal(expected));
  }
  EXPECT_EQ(arena_figures(ArenaKind::file).asked_bytes, 513U * 4000U);
  EXPECT_EQ(arena_figures(ArenaKind::host).asked_bytes, host.asked_bytes);
  tensor.reset();
  EXPECT_EQ(arena_figures(ArenaKind::file).held_bytes, 0U);
  expect_arena_error(ErrorCode::invalid_argument, "expected a directory in which a file can be made, got '/nowhere'",
                     [] { Arena::make({.directory = "/nowhere"})->zeros({1}, at::kFloat); });
}

TEST(ArenaTest, ADeviceHasOneArenaOfItsOwn) {
  EXPECT_EQ(Arena::of(c10::kCPU), Arena::of(c10::Device("cpu")));
  EXPECT_NE(Arena::of(c10::kCPU), Arena::make({}));
  EXPECT_EQ(Arena::of(c10::kCPU)->options().budget_bytes, 0U);
}

TEST(ArenaTest, ThreadsShareIt) {
  const std::uint64_t budget = 40 * page();
  const auto arena = Arena::make({.budget_bytes = budget});
  std::atomic<int> made = 0, refused = 0;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<at::Tensor> held;
    for (int i = 0; i < 500; ++i) {
      if (!held.empty() && random() % 2 == 0) {
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
        continue;
      }
      try {
        const auto bytes = static_cast<std::int64_t>(random() % (8 * page()));
        held.push_back(arena->zeros({bytes}, at::kByte));
        if (bytes > 0) *held.back().mutable_data_ptr<std::uint8_t>() = 1;
        ++made;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
        ++refused;
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 0);
  expect_figures(arena->figures(), 0, 0, 0);
  EXPECT_LE(arena->figures().peak_held_bytes, budget);
  EXPECT_GT(arena->figures().peak_held_bytes, budget / 2);
}

}  // namespace

}  // namespace octavo
