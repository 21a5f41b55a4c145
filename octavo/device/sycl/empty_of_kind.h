// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

namespace octavo::sycl_device {

/// An uninitialized contiguous tensor on `sycl` in memory of that kind; its storage does not grow. Of kind `device` on
/// a GPU it is for kernels, copies and views alone: other operators run on the host, which cannot read it, and refuse.
/// Throws Error unsupported where SYCL is missing, invalid_argument where the device is not there; torch's c10::Error
/// for impossible sizes, its OutOfMemoryError. Thread-safe.
OCTAVO_API at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device);

}  // namespace octavo::sycl_device
