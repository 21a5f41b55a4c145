// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// The memory of the device `sycl` as users choose it. Thread-safe.
namespace octavo::sycl_device {

/// Makes an uninitialized contiguous tensor on `sycl` in memory of that kind; its storage does not grow. A tensor of
/// kind `device` on a GPU is only for kernels, copies and views: other operators run on the host, which cannot read
/// it, and refuse. Throws Error unsupported where SYCL is missing, Error invalid_argument where there is no such
/// device, torch's c10::Error for impossible sizes, and torch's OutOfMemoryError.
OCTAVO_API at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device);

/// The most bytes that may be reserved on the device, so that a large device can stand for a small one; nullopt: all
/// that it has. The environment variable OCTAVO_SYCL_MEMORY_BYTES sets it for every device. Cached memory beyond the
/// limit is freed by the next allocation that needs new memory. Throws Error unsupported where SYCL is missing, Error
/// invalid_argument where there is no such device or the variable is no number.
OCTAVO_API void set_memory_limit(int device, std::optional<std::uint64_t> bytes);
OCTAVO_API std::optional<std::uint64_t> memory_limit(int device);

/// Returns the size in bytes of the largest tensor that can be made on the device. It stays within the limit and within
/// what the driver has left and the cache holds, and is rounded down to the size of a block. Throws as memory_limit
/// does.
OCTAVO_API std::uint64_t available_memory(int device);

}  // namespace octavo::sycl_device
