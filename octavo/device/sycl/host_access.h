// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

#include "octavo/export.h"

namespace octavo::sycl_device {

/// Whether the host reads and writes memory where it lies: all but that of kind `device` on a GPU. Thread-safe.
bool host_reads(const c10::Storage&);

/// Whether the devices are the host's own processor. Throws Error unsupported where SYCL is missing.
bool kernels_run_on_host();

/// From now on the CPU device is worked with as if it were a GPU: memory of kind `device` is its own, and gradients are
/// encoded by its kernels. For tests, which otherwise would need one. Process-wide.
OCTAVO_API void act_as_gpu(bool is_gpu) noexcept;

}  // namespace octavo::sycl_device
