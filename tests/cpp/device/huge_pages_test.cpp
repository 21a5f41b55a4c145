// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/huge_pages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace octavo {

namespace {

constexpr std::uintptr_t kHugePage = 1U << 21;

TEST(HugePages, ALargeTensorStartsAtOneAndASmallOneDoesNotWasteOne) {
  for (const std::uint64_t count : {0ULL, 1000ULL, 1ULL << 20, (1ULL << 20) + 7}) {
    at::Tensor tensor = empty_on_huge_pages(count, at::kBFloat16);
    EXPECT_EQ(tensor.numel(), static_cast<std::int64_t>(count));
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    if (tensor.nbytes() >= kHugePage) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kHugePage, 0U);
    }
    tensor.fill_(1);
    EXPECT_TRUE(at::equal(tensor, at::ones({tensor.numel()}, at::kBFloat16)));
  }
}

TEST(HugePages, MovingATensorKeepsItsPlaceAndItsValues) {
  const at::Tensor values = at::arange(3 << 20, at::kFloat);
  const at::Tensor part = values.narrow(0, 12345, 2 << 20);
  const at::Tensor before = part.clone();
  const void* place = part.const_data_ptr();
  move_to_huge_pages(part);
  EXPECT_EQ(part.const_data_ptr(), place);
  EXPECT_TRUE(at::equal(part, before));
}

}  // namespace

}  // namespace octavo
