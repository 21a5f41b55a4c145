// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/kernels/table.h"

/// The CUDA back end, which runs the kernels of kernels/lanes. compile.cpp compiles them for the device at hand,
/// launch.cpp loads and enqueues them, by the driver's functions that driver.h lists.
namespace octavo::cuda_backend {

// memory.cpp: allocates memory at a multiple of `alignment`, a power of two; `bytes` is above 0. Returns null where
// there is none left. Thread-safe.
void* allocate_memory(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
void free_memory(int device, void* memory);

// events.cpp
#include "octavo/kernels/lanes/events.inc"

extern const DeviceRuntime runtime;
extern const ManagedMemory managed;
extern const KernelTable table;

}  // namespace octavo::cuda_backend
