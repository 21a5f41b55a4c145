// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// What torch's own interfaces of a device do not ask for. Functions with a device throw Error: unsupported where SYCL
/// is missing, invalid_argument where the device is not there. Thread-safe.
namespace octavo::sycl_device {

/// 0 where SYCL is missing.
OCTAVO_API int count_devices() noexcept;
OCTAVO_API bool has_been_used() noexcept;
/// Whether this process was forked from one that had used the device: it cannot.
OCTAVO_API bool is_in_bad_fork() noexcept;
OCTAVO_API DeviceFacts facts(int device);
/// Draws the numbers that a CPU generator of the same seed draws.
OCTAVO_API at::Generator default_generator_of(int device);
/// Of the default generators of all devices; looks for no device.
OCTAVO_API void seed_all(std::uint64_t seed);
/// An uninitialized contiguous tensor on `sycl` in memory of that kind. `device` on a GPU: for kernels and copies
/// alone, since other operators run on the host, which cannot read it. torch's c10::Error for impossible sizes.
OCTAVO_API at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device);

/// The most bytes that may be reserved on the device; nothing: what it has. What is cached and too much goes at the
/// next allocation.
OCTAVO_API void set_memory_limit(int device, std::optional<std::uint64_t> bytes);
OCTAVO_API std::optional<std::uint64_t> memory_limit(int device);

}  // namespace octavo::sycl_device
