// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/kernels/runtime.h"

namespace octavo::cuda_backend {

/// Allocates memory at a multiple of `alignment`, a power of two; `bytes` is above 0. Returns null where there is none
/// left. Thread-safe.
void* allocate_memory(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
void free_memory(int device, void* memory);

}  // namespace octavo::cuda_backend
