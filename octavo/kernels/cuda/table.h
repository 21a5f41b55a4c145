// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/kernels/table.h"

/// The CUDA back end, which runs the kernels of kernels/lanes. compile.cpp compiles them for the device at hand,
/// launch.cpp loads and enqueues them, by the driver's functions that driver.h lists.
namespace octavo::cuda_backend {

#include "octavo/kernels/lanes/runtime.inc"

/// runtime.cpp: creates a queue, as DeviceRuntime does.
Queue create_queue(int device, bool is_urgent);

extern const DeviceRuntime runtime;
extern const ManagedMemory managed;
extern const KernelTable table;

}  // namespace octavo::cuda_backend
