// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <functional>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// From a torch device to the kernels that run on it, on the caller's stream.
namespace octavo {

/// The kernels for a device's memory. Throws Error unsupported where its back end is missing or the device has none.
OCTAVO_API const KernelTable& kernels_for(c10::Device device);

/// Whether a device is Octavo's `sycl`: torch's one type for devices from outside (PrivateUse1) may be another
/// library's.
OCTAVO_API bool is_sycl(c10::Device device);

/// What kernels are launched with, made together: those of a device, the device's current stream, and the device as the
/// thread's current one until the scope ends, without which CUDA launches nowhere else. Throws as kernels_for does.
class OCTAVO_API LaunchScope {
 public:
  explicit LaunchScope(c10::Device device);
  const KernelTable& kernels() const { return kernels_; }
  /// The calling thread on CPU.
  Queue queue() const { return queue_; }

 private:
  const KernelTable& kernels_;
  const c10::OptionalDeviceGuard device_is_current_;
  const Queue queue_;
};

/// Blocks until the device's current stream has done what it was given: the host may then read what kernels wrote.
OCTAVO_API void wait_for_current_stream(c10::Device device);

/// The sycl::queue behind the current stream of `sycl` or `xpu`; on `cpu` the one behind the calling thread's own
/// calls, which must be waited for before torch goes on. Throws Error unsupported where SYCL is missing,
/// invalid_argument for another device.
OCTAVO_API Queue sycl_queue(c10::Device device);

/// Runs body(first, last) over disjoint parts of [0, count). On CPU the parts are at least `grain` long and run on
/// torch's intra-op threads; elsewhere, and with OCTAVO_BACKEND=sycl, there is one part, because a kernel is parallel
/// in itself.
OCTAVO_API void for_parts(c10::Device device, std::int64_t count, std::int64_t grain,
                          const std::function<void(std::int64_t first, std::int64_t last)>& body);

}  // namespace octavo
