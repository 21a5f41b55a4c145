// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/pinned.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

bool is_aligned(const at::Tensor& tensor, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
}

TEST(Pinned, ZerosAtTheAlignment) {
  for (const std::int64_t alignment : {1, 64, 4096, 1 << 20}) {
    const at::Tensor tensor = pinned_zeros({3, 5}, at::kFloat, alignment);
    EXPECT_TRUE(is_aligned(tensor, static_cast<std::uintptr_t>(alignment)));
    EXPECT_TRUE(tensor.equal(at::zeros({3, 5})));
  }
  EXPECT_TRUE(is_aligned(pinned_zeros({1}, at::kByte), static_cast<std::uintptr_t>(page_bytes())));
  for (const std::int64_t alignment : {-8, 3, 4097}) EXPECT_THROW(pinned_zeros({1}, at::kByte, alignment), Error);
  EXPECT_THROW(pinned_zeros({-1}, at::kByte), Error);
}

TEST(Pinned, TheLastViewFrees) {
  const std::int64_t before = pinned_bytes();
  at::Tensor tensor = pinned_zeros({page_bytes() + 1}, at::kByte);
  EXPECT_EQ(pinned_bytes(), before + 2 * page_bytes());
  at::Tensor view = tensor.slice(0, 100, 200);
  EXPECT_TRUE(is_pinned(tensor) && is_pinned(view));
  tensor.reset();
  view.fill_(1);
  EXPECT_EQ(pinned_bytes(), before + 2 * page_bytes());
  view.reset();
  EXPECT_EQ(pinned_bytes(), before);
}

TEST(Pinned, UnpinnedMemoryStaysWithItsTensors) {
  const std::int64_t before = pinned_bytes();
  at::Tensor tensor = pinned_zeros({10}, at::kInt).fill_(3);
  EXPECT_TRUE(unpin(tensor.slice(0, 2)));
  EXPECT_EQ(pinned_bytes(), before);
  EXPECT_FALSE(is_pinned(tensor) || unpin(tensor) || unpin(at::zeros({3})));
  EXPECT_EQ(tensor.sum().item<int>(), 30);
}

TEST(Pinned, ThreadsShareTheRegister) {
  const std::int64_t before = pinned_bytes();
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([id] {
      for (int round = 0; round < 50; ++round) {
        const at::Tensor tensor = pinned_zeros({8}, at::kInt).fill_(id);
        EXPECT_TRUE(is_pinned(tensor.slice(0, 4)));
        EXPECT_EQ(tensor.sum().item<int>(), 8 * id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pinned_bytes(), before);
}

/// A device's pinned allocator that is as awkward as allowed: its blocks are not aligned and full of old bytes, and its
/// context is not the address.
class AwkwardAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kMost, "no more");
    auto* const block = new std::vector<char>(bytes + 64, 7);
    live.insert(block);
    const auto start = reinterpret_cast<std::uintptr_t>(block->data());
    return {reinterpret_cast<void*>((start / 64 + 1) * 64 - 16), block, &free, c10::Device(c10::DeviceType::CPU)};
  }
  static void free(void* context) {
    live.erase(context);
    delete static_cast<std::vector<char>*>(context);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool record_event(void*, void* context, c10::Stream) override { return live.contains(context); }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  static constexpr std::size_t kMost = 1 << 20;
  static inline std::set<void*> live;
};

TEST(Pinned, ADevicesAllocatorKeepsItsContextAndFrees) {
  constexpr auto kDevice = c10::DeviceType::MTIA;  // a type that has no allocator of its own in this process
  AwkwardAllocator allocator;
  at::setHostAllocator(kDevice, &allocator);
  const std::int64_t before = pinned_bytes();
  at::Tensor tensor = pinned_zeros({100}, at::kComplexDouble, 256, kDevice);
  EXPECT_TRUE(is_aligned(tensor, 256) && is_pinned(tensor.slice(0, 50)));
  EXPECT_TRUE(tensor.equal(at::zeros({100}, at::kComplexDouble)));
  EXPECT_GE(pinned_bytes(), before + 1600);
  EXPECT_FALSE(unpin(tensor));
  const c10::Stream stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU));
  // torch calls this after a copy that it did not wait for
  EXPECT_TRUE(allocator.record_event(tensor.data_ptr(), tensor.storage().data_ptr().get_context(), stream));
  at::Tensor view = tensor.slice(0, 10);
  tensor.reset();
  EXPECT_EQ(AwkwardAllocator::live.size(), 1U);
  view.reset();
  EXPECT_TRUE(is_pinned(pinned_zeros({0}, at::kByte, 1, kDevice)));
  try {
    pinned_zeros({AwkwardAllocator::kMost + 1}, at::kByte, 1, kDevice);
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_TRUE(AwkwardAllocator::live.empty());
  EXPECT_EQ(pinned_bytes(), before);
}

}  // namespace

}  // namespace octavo
