// SPDX-License-Identifier: Apache-2.0
// Managed memory of the back end under test, without torch, and also on the fake devices. Then memory in files, which
// belongs to the host.
#include "octavo/kernels/managed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using ManagedBytes = std::vector<unsigned char>;

class ManagedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(managed_, nullptr);
    if (runtime_ != nullptr) queue_ = runtime_->create_queue(0, /*is_urgent=*/false);
  }
  void TearDown() override {
    wait();
    for (const auto& [memory, bytes] : allocated_) managed_->free(queue_, memory, bytes);
  }

  unsigned char* allocate(std::uint64_t bytes) {
    void* memory = managed_->allocate(queue_, bytes);
    EXPECT_NE(memory, nullptr);
    allocated_.emplace_back(memory, bytes);
    return static_cast<unsigned char*>(memory);
  }
  void wait() const {
    if (runtime_ != nullptr) runtime_->wait(queue_);
  }
  static ManagedBytes counting(std::uint64_t count) {
    ManagedBytes bytes(count);
    for (std::uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 256);
    return bytes;
  }

  const DeviceRuntime* const runtime_ = host_backend().runtime;
  const ManagedMemory* const managed_ = host_backend().managed;
  Queue queue_;
  std::vector<std::pair<void*, std::uint64_t>> allocated_;
};

TEST_F(ManagedMemoryTest, EachAllocationHasPagesOfItsOwnThatTheHostWrites) {
  const std::uint64_t page = managed_->page_bytes();
  ASSERT_GE(page, 4096U);
  std::vector<std::uint64_t> pages;
  for (const std::uint64_t bytes : {std::uint64_t{1}, page - 1, page, page + 1, 3 * page, std::uint64_t{3} << 20}) {
    unsigned char* memory = allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % page, 0U);
    std::memset(memory, 0xFF, bytes);
    for (std::uint64_t at = 0; at < bytes; at += page) pages.push_back(reinterpret_cast<std::uintptr_t>(memory) + at);
  }
  std::sort(pages.begin(), pages.end());
  EXPECT_EQ(std::adjacent_find(pages.begin(), pages.end()), pages.end());
}

TEST_F(ManagedMemoryTest, FreshMemoryIsZeroWhereTheBackEndSaysSo) {
  for (int i = 0; managed_->is_zeroed && i < 3; ++i) {
    auto* memory = static_cast<unsigned char*>(managed_->allocate(queue_, 100000));
    EXPECT_EQ(std::count(memory, memory + 100000, 0), 100000);
    std::memset(memory, 0xFF, 100000);
    managed_->free(queue_, memory, 100000);
  }
}

TEST_F(ManagedMemoryTest, FillWritesItsElementsAndNoOthers) {
  constexpr std::uint32_t kPattern = 0xBF9D70A4;  // four different bytes
  for (const unsigned width : {1U, 4U}) {
    ManagedBytes element(width);
    std::memcpy(element.data(), &kPattern, width);
    for (const std::uint64_t count : {0, 1, 3, 7, 255, 256, 257, 4095, 4097, 100003}) {
      const std::uint64_t bytes = width * count, all = bytes + 2 * 64;
      unsigned char* memory = allocate(all);
      std::memset(memory, 0x55, all);
      managed_->fill(queue_, memory + 64, kPattern, width, count);
      wait();
      ManagedBytes expected(all, 0x55);
      for (std::uint64_t i = 0; i < bytes; ++i) expected[64 + i] = element[i % width];
      EXPECT_EQ(ManagedBytes(memory, memory + all), expected) << count << " elements of " << width << " bytes";
    }
  }
}

TEST_F(ManagedMemoryTest, ContentsStayWhereverThePagesGo) {
  const std::uint64_t bytes = 5 * managed_->page_bytes() + 123;
  unsigned char* memory = allocate(bytes);
  ManagedBytes expected = counting(bytes);
  std::memcpy(memory, expected.data(), bytes);
  for (const bool to_device : {true, false, false, true, true, false}) {
    for (const auto& [first, end] : {std::pair(std::uint64_t{0}, bytes), {1, bytes - 1}, {77, 78}, {5000, 15001}}) {
      managed_->prefetch(queue_, memory + first, end - first, to_device);
    }
    managed_->prefetch(queue_, memory, 0, to_device);
    wait();
    EXPECT_EQ(ManagedBytes(memory, memory + bytes), expected);
    std::reverse(memory, memory + bytes);
    std::reverse(expected.begin(), expected.end());
  }
}

TEST_F(ManagedMemoryTest, KernelsUseItBehindWhatMovesIt) {
  constexpr std::uint64_t kFloats = 5000;
  auto* const terms = reinterpret_cast<float*>(allocate(kFloats * sizeof(float)));
  auto* const sums = reinterpret_cast<float*>(allocate(kFloats * sizeof(float)));
  for (std::uint64_t i = 0; i < kFloats; ++i) terms[i] = static_cast<float>(i);
  managed_->fill(queue_, sums, 0x3F000000, 4, kFloats);  // 0.5
  const Payload payload{nullptr, reinterpret_cast<std::uint8_t*>(terms)};
  for (int i = 0; i < 3; ++i) {
    managed_->prefetch(queue_, sums, kFloats * sizeof(float), /*to_device=*/i != 1);
    host_backend().of(BlockCodec::fp32).decode(queue_, payload, kFloats, kFloats, Store::add, sums, nullptr);
  }
  managed_->prefetch(queue_, sums, kFloats * sizeof(float), /*to_device=*/false);
  wait();
  for (std::uint64_t i = 0; i < kFloats; ++i) ASSERT_EQ(sums[i], 0.5F + 3.0F * static_cast<float>(i));
}

TEST_F(ManagedMemoryTest, MoreThanThereIsIsNull) {
  EXPECT_EQ(managed_->allocate(queue_, std::uint64_t{1} << 60), nullptr);
  EXPECT_EQ(managed_->allocate(queue_, ~std::uint64_t{0}), nullptr);
}

// ---- in files

class FileMemoryTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 3 * 65536 + 10;

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "octavo-managed-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  unsigned char* allocate(std::uint64_t bytes) const {
    return static_cast<unsigned char*>(host_managed.allocate_in_file({}, directory_, bytes));
  }
  static std::ptrdiff_t open_files() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  }

  std::string directory_;
};

TEST_F(FileMemoryTest, OneFileWithoutANameHoldsAllAndGoesWithTheLast) {
  const auto before = open_files();
  unsigned char* const one = allocate(kBytes);
  unsigned char* const other = allocate(100);
  ASSERT_TRUE(one != nullptr && other != nullptr);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_EQ(open_files(), before + 1);
  EXPECT_EQ(std::count(one, one + kBytes, 0), static_cast<std::ptrdiff_t>(kBytes));
  std::memset(one, 1, kBytes);
  std::memset(other, 2, 100);
  for (const bool to_device : {false, true, false}) {
    host_managed.prefetch({}, one, kBytes, to_device);
    host_managed.prefetch({}, one + 4096, 9000, to_device);
    EXPECT_EQ(std::count(one, one + kBytes, 1), static_cast<std::ptrdiff_t>(kBytes));
  }
  host_managed.free({}, one, kBytes);
  EXPECT_EQ(std::count(other, other + 100, 2), 100);
  host_managed.free({}, other, 100);
  EXPECT_EQ(open_files(), before);
}

TEST_F(FileMemoryTest, WhatWasFreedIsZeroForTheNext) {
  unsigned char* const stays = allocate(1);
  for (int i = 0; i < 4; ++i) {
    unsigned char* const memory = allocate(kBytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(std::count(memory, memory + kBytes, 0), static_cast<std::ptrdiff_t>(kBytes));
    std::memset(memory, 0xFF, kBytes);
    host_managed.free({}, memory, kBytes);
  }
  host_managed.free({}, stays, 1);
}

/// A process may have some 65,000 mappings, and an optimizer may have four states per parameter.
TEST_F(FileMemoryTest, ManyTakeFewMappings) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  constexpr std::size_t kMany = 2000;
  const auto before = mappings();
  std::vector<unsigned char*> all;
  const auto fill = [&](std::size_t i) {
    all[i] = allocate(100);
    ASSERT_NE(all[i], nullptr);
    EXPECT_EQ(std::count(all[i], all[i] + 100, 0), 100);
    std::memset(all[i], static_cast<int>(i % 251 + 1), 100);
  };
  all.resize(kMany);
  for (std::size_t i = 0; i < kMany; ++i) fill(i);
  EXPECT_LT(mappings(), before + 50);
  for (std::size_t i = 0; i < kMany; i += 3) host_managed.free({}, all[i], 100);
  for (std::size_t i = 0; i < kMany; i += 3) fill(i);
  EXPECT_LT(mappings(), before + 50);
  for (std::size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(std::count(all[i], all[i] + 100, static_cast<int>(i % 251 + 1)), 100);
    host_managed.free({}, all[i], 100);
  }
  EXPECT_LT(mappings(), before + 50);
}

TEST_F(FileMemoryTest, ADiskWithoutRoomGivesNullAndTakesNothing) {
  unsigned char* const before = allocate(kBytes);
  ASSERT_NE(before, nullptr);
  const std::uintmax_t free_before = std::filesystem::space(directory_).available;
  std::atomic<bool> is_done = false;
  std::uintmax_t least_free = free_before;
  std::thread other([&] {  // other programs must not find a full disk meanwhile
    while (!is_done) least_free = std::min(least_free, std::filesystem::space(directory_).available);
  });
  EXPECT_EQ(allocate(std::uint64_t{1} << 50), nullptr);
  EXPECT_EQ(allocate(~std::uint64_t{0}), nullptr);
  is_done = true;
  other.join();
  EXPECT_GT(least_free, free_before / 2);
  unsigned char* const after = allocate(kBytes);
  ASSERT_NE(after, nullptr);
  std::memset(after, 3, kBytes);
  EXPECT_EQ(std::count(before, before + kBytes, 0), static_cast<std::ptrdiff_t>(kBytes));
  host_managed.free({}, before, kBytes);
  host_managed.free({}, after, kBytes);
}

TEST_F(FileMemoryTest, ADirectoryThatIsNoneIsNamed) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "not a directory";
  for (const std::string& bad : {directory_ + "/missing", file}) {
    try {
      host_managed.allocate_in_file({}, bad, kBytes);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("got '" + bad + "': "), std::string::npos) << error.what();
    }
  }
}

TEST_F(FileMemoryTest, AProcessWithTooManyFilesIsNotToldToTakeAnotherDirectory) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    try {
      host_managed.allocate_in_file({}, directory_, kBytes);
    } catch (const Error& error) {
      _exit(error.code() == ErrorCode::out_of_memory ? 0 : 1);
    }
    _exit(2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(FileMemoryTest, AForkedProcessTakesNothingFromThisOne) {
  unsigned char* const memory = allocate(kBytes);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 9, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    host_managed.free({}, memory, kBytes);
    unsigned char* const own = allocate(kBytes);
    std::memset(own, 1, kBytes);
    _exit(own == nullptr ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(std::count(memory, memory + kBytes, 9), static_cast<std::ptrdiff_t>(kBytes));
  host_managed.free({}, memory, kBytes);
}

}  // namespace

}  // namespace octavo
