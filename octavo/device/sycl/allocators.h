// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "octavo/kernels/runtime.h"

/// Torch's allocators over the MemoryPool: one of the device, one of page-locked memory of the host, and one in the
/// place of torch's CPU allocator. Each exists as long as the process.
namespace octavo::sycl_device {

/// The allocator of memory that the host and the device both read and write in place. The memory is of the current
/// device and its current stream.
c10::DeviceAllocator& allocator();

/// The allocator of page-locked memory of the host that the device reads; `tensor.pin_memory()` gives such memory.
/// Copies from and to it run on a stream; its memory is not reused before they are done.
at::HostAllocator& pinned_allocator();

/// Whether `memory` is the start of page-locked memory of the pool.
bool is_pinned(const void* memory);

/// Torch's own CPU allocator, except that within OnDeviceMemory it gives memory of the device.
c10::Allocator& cpu_allocator();
/// Installs `cpu_allocator()` in place of torch's. Called once.
void install_cpu_allocator();

/// A scope in which CPU tensors that this thread makes lie in memory of the device. What a CPU kernel returns can then
/// become a tensor of the device without a copy. All new memory of the device is then ready for the host. Scopes may
/// nest; the innermost counts.
class OnDeviceMemory {
 public:
  explicit OnDeviceMemory(c10::DeviceIndex);
  ~OnDeviceMemory();
  OnDeviceMemory(const OnDeviceMemory&) = delete;
  OnDeviceMemory& operator=(const OnDeviceMemory&) = delete;

 private:
  c10::DeviceIndex before_;
};

/// Allocates memory of any kind for the current stream; `as` is the device that the DataPtr names. Page-locked memory
/// of the CPU belongs to no stream. Within OnDeviceMemory the call waits until the stream is done, so that the host may
/// use the memory at once.
c10::DataPtr allocate(c10::DeviceIndex, MemoryKind, std::size_t bytes, c10::Device as);

/// The deleter of all memory that comes from here; its context is the memory itself. Also takes memory of torch's CPU
/// allocator.
void release(void* memory);

}  // namespace octavo::sycl_device
