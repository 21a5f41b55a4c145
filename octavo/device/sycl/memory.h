// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// The memory of the device `sycl` as users choose it. Thread-safe.
namespace octavo::sycl_device {

/// An uninitialized contiguous tensor on `sycl` in memory of that kind; its storage does not grow. Of kind `device` on
/// a GPU it is for kernels, copies and views alone: other operators run on the host, which cannot read it, and refuse.
/// Throws Error unsupported where SYCL is missing, invalid_argument where the device is not there; torch's c10::Error
/// for impossible sizes, its OutOfMemoryError.
OCTAVO_API at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device);

/// The most bytes that may be reserved on the device, so that a large one can stand for a small one; nullopt: all that
/// it has. OCTAVO_SYCL_MEMORY_BYTES sets it from outside, for every device. Cached memory beyond it is freed at the
/// next allocation. Throws Error unsupported where SYCL is missing, invalid_argument where the device is not there, or
/// the variable is no number.
OCTAVO_API void set_memory_limit(int device, std::optional<std::uint64_t> bytes);
OCTAVO_API std::optional<std::uint64_t> memory_limit(int device);

/// The largest tensor that can be made on the device, in bytes: of the limit, of what the driver has, and of what is
/// cached, less what blocks are rounded up by. Throws as memory_limit does.
OCTAVO_API std::uint64_t available_memory(int device);

}  // namespace octavo::sycl_device
