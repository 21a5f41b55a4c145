// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

namespace octavo::sycl_device {

/// While it lives, CPU tensors that this thread makes lie in memory of the device: what a CPU kernel returns can then
/// become a tensor of the device without a copy. All new memory of the device is then ready for the host. Scopes may
/// nest; the innermost counts.
class OnDeviceMemory {
 public:
  explicit OnDeviceMemory(c10::DeviceIndex);
  ~OnDeviceMemory();
  static bool is_here() noexcept;  // in this thread
  OnDeviceMemory(const OnDeviceMemory&) = delete;
  OnDeviceMemory& operator=(const OnDeviceMemory&) = delete;

 private:
  c10::DeviceIndex before_;
};

/// Puts itself before torch's CPU allocator, to which all goes on outside of such a scope. Called once.
void install_cpu_allocator();
c10::Allocator& cpu_allocator();

/// Frees memory of torch's own CPU allocator.
void release_ordinary(void* memory);

}  // namespace octavo::sycl_device
