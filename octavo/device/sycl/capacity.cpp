// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/capacity.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "octavo/device/sycl/devices.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr const char* kLimitVariable = "OCTAVO_SYCL_MEMORY_BYTES";

std::optional<std::uint64_t> limit_of_environment() {
  const char* text = std::getenv(kLimitVariable);
  if (text == nullptr || *text == 0) return std::nullopt;
  std::uint64_t bytes = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, bytes);
  if (error != std::errc() || stop != end) {
    fail(ErrorCode::invalid_argument, "device.sycl", "expected a number of bytes in ", kLimitVariable, ", got '", text,
         "'");
  }
  return bytes;
}

}  // namespace

Capacity::Capacity() : first_limit_(limit_of_environment()) {}

void Capacity::set_limit(c10::DeviceIndex device, std::optional<std::uint64_t> bytes) { limits_[device] = bytes; }

std::optional<std::uint64_t> Capacity::limit(c10::DeviceIndex device) const {
  const auto found = limits_.find(device);
  return found != limits_.end() ? found->second : first_limit_;
}

std::uint64_t Capacity::total_bytes(c10::DeviceIndex device) const {
  const std::uint64_t there = runtime().facts(device).total_bytes;
  return std::min(limit(device).value_or(there), there);
}

}  // namespace octavo::sycl_device
