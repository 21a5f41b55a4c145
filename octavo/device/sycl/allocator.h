// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "octavo/kernels/runtime.h"

namespace octavo::sycl_device {

/// torch's face of the MemoryPool: memory that the host and the device both read and write in place, of the current
/// device and its current stream. Lives as long as the process.
c10::DeviceAllocator& allocator();

/// The same with a choice of where it lies; `as` is the device that the DataPtr names. Page-locked memory of the CPU
/// belongs to no stream. Within OnDeviceMemory it waits until the stream is done: the host may use the memory at once.
c10::DataPtr allocate(c10::DeviceIndex, MemoryKind, std::size_t bytes, c10::Device as);

/// The deleter of all of it, the context being the memory itself. Also takes memory of torch's CPU allocator.
void release(void* memory);

}  // namespace octavo::sycl_device
