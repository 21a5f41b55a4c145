// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>

namespace octavo::sycl_device {

/// How much may be reserved on each device. The owner locks.
class Capacity {
 public:
  /// Throws Error invalid_argument where OCTAVO_SYCL_MEMORY_BYTES, the limit of every device at the start, is no
  /// number.
  Capacity();

  void set_limit(c10::DeviceIndex, std::optional<std::uint64_t> bytes);
  std::optional<std::uint64_t> limit(c10::DeviceIndex) const;
  /// The limit, and no more than the device has.
  std::uint64_t total_bytes(c10::DeviceIndex) const;

 private:
  const std::optional<std::uint64_t> first_limit_;
  std::map<c10::DeviceIndex, std::optional<std::uint64_t>> limits_;  // those set by a call
};

}  // namespace octavo::sycl_device
