// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "octavo/kernels/runtime.h"

/// The MemoryPool as torch asks for it: by an allocator of the device, one of page-locked memory of the host, and one
/// in the place of torch's CPU allocator. Each lives as long as the process.
namespace octavo::sycl_device {

/// Memory that the host and the device both read and write in place, of the current device and its current stream.
c10::DeviceAllocator& allocator();

/// Page-locked memory of the host that the device reads: what `tensor.pin_memory()` gives. Copies from and to it run on
/// a stream; its memory is not reused before they are done.
at::HostAllocator& pinned_allocator();

/// Whether `memory` is the start of page-locked memory of the pool.
bool is_pinned(const void* memory);

/// torch's own CPU allocator, but within OnDeviceMemory memory of the device.
c10::Allocator& cpu_allocator();
/// Puts `cpu_allocator()` before torch's. Called once.
void install_cpu_allocator();

/// While it lives, CPU tensors that this thread makes lie in memory of the device: what a CPU kernel returns can then
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

/// Memory of any kind for the current stream; `as` is the device that the DataPtr names. Page-locked memory of the CPU
/// belongs to no stream. Within OnDeviceMemory it waits until the stream is done: the host may use the memory at once.
c10::DataPtr allocate(c10::DeviceIndex, MemoryKind, std::size_t bytes, c10::Device as);

/// The deleter of all of it, the context being the memory itself. Also takes memory of torch's CPU allocator.
void release(void* memory);

}  // namespace octavo::sycl_device
