// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <functional>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// Finds the kernels that run on a torch device, and launches them on the caller's stream.
namespace octavo {

/// Returns the kernels for a device's memory. Throws Error unsupported where the device has no back end or its back end
/// is missing.
OCTAVO_API const KernelTable& kernels_for(c10::Device device);

/// Whether a device is Octavo's `sycl`. Torch has one type for devices from outside (PrivateUse1), which may be another
/// library's.
OCTAVO_API bool is_sycl(c10::Device device);

/// What kernels are launched with: the kernels of a device and the queue of the device's current stream. Until the
/// scope ends the device is also the thread's current one, because CUDA launches on no other. Throws as kernels_for
/// does.
class OCTAVO_API LaunchScope {
 public:
  explicit LaunchScope(c10::Device device);
  const KernelTable& kernels() const { return kernels_; }
  /// The queue of the device's current stream; the empty queue, which is the calling thread, on CPU.
  Queue queue() const { return queue_; }

 private:
  const KernelTable& kernels_;
  const c10::OptionalDeviceGuard device_is_current_;
  const Queue queue_;
};

/// Blocks until the device's current stream has done what it was given: the host may then read what kernels wrote.
OCTAVO_API void wait_for_current_stream(c10::Device device);

/// Returns the sycl::queue behind the current stream of `sycl` or `xpu`. On `cpu` it is the queue behind the calling
/// thread's own calls, and the caller must wait for it before torch goes on. Throws Error unsupported where SYCL is
/// missing, Error invalid_argument for another device.
OCTAVO_API Queue sycl_queue(c10::Device device);

/// Runs body(first, last) over disjoint parts of [0, count). On CPU the parts are at least `grain` long and run on
/// torch's intra-op threads; elsewhere, and with OCTAVO_BACKEND=sycl, there is one part, because a kernel is parallel
/// in itself.
OCTAVO_API void for_parts(c10::Device device, std::int64_t count, std::int64_t grain,
                          const std::function<void(std::int64_t first, std::int64_t last)>& body);

}  // namespace octavo
