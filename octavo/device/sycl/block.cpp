// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/block.h"

#include <algorithm>
#include <bit>

namespace octavo::sycl_device {

namespace {

constexpr std::uint64_t kSmallStep = 512, kLarge = 1 << 20, kLargestStep = 2 << 20;

std::uint64_t step_of(std::uint64_t bytes) {
  return bytes <= kLarge ? kSmallStep : std::min(std::bit_floor(bytes) / 8, kLargestStep);
}

}  // namespace

std::uint64_t rounded_up(std::uint64_t bytes) {
  const std::uint64_t step = step_of(bytes);
  return (bytes / step + (bytes % step != 0)) * step;
}

std::uint64_t rounded_down(std::uint64_t bytes) { return bytes / step_of(bytes) * step_of(bytes); }

}  // namespace octavo::sycl_device
