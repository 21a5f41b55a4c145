// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// What torch's own interfaces of a device do not ask for. Functions with a device throw Error: unsupported where SYCL
/// is missing, invalid_argument where the device is not there. Thread-safe.
namespace octavo::sycl_device {

/// 0 where SYCL is missing.
OCTAVO_API int count_devices() noexcept;
/// Whether the device was used in this process: one forked from it cannot use it.
OCTAVO_API bool was_used() noexcept;
OCTAVO_API DeviceFacts facts(int device);
/// Draws the numbers that a CPU generator of the same seed draws.
OCTAVO_API at::Generator default_generator_of(int device);

/// The most bytes that may be reserved on the device; nothing: what it has. What is cached and too much goes at the
/// next allocation.
OCTAVO_API void set_memory_limit(int device, std::optional<std::uint64_t> bytes);
OCTAVO_API std::optional<std::uint64_t> memory_limit(int device);

}  // namespace octavo::sycl_device
