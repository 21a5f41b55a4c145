// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "octavo/export.h"

namespace octavo::sycl_device {

/// The most bytes that may be reserved on the device, so that a large one can stand for a small one; nothing: what it
/// has. OCTAVO_SYCL_MEMORY_BYTES sets it from outside, for every device. What is cached and too much goes at the next
/// allocation. Throws Error unsupported where SYCL is missing, invalid_argument where the device is not there, or the
/// variable is no number. Thread-safe.
OCTAVO_API void set_memory_limit(int device, std::optional<std::uint64_t> bytes);
OCTAVO_API std::optional<std::uint64_t> memory_limit(int device);

}  // namespace octavo::sycl_device
