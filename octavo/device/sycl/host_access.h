// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

#include "octavo/export.h"

namespace octavo::sycl_device {

/// Whether the host reads and writes memory where it lies: all but that of kind `device` on a GPU. Thread-safe.
bool host_reads(const c10::Storage&);

/// From now on the CPU device, too, keeps memory of kind `device` to itself, as a GPU does: for tests, which otherwise
/// would need one. Process-wide.
OCTAVO_API void keep_device_memory_private(bool is_private) noexcept;

}  // namespace octavo::sycl_device
