// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/device.h"

#include <c10/core/DeviceType.h>

#include <mutex>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/cpu_allocator.h"
#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/fallback.h"
#include "octavo/device/sycl/guard.h"
#include "octavo/device/sycl/hooks.h"
#include "octavo/device/sycl/operators.h"
#include "octavo/device/sycl/pinned.h"

namespace octavo {

void register_sycl_device() {
  using namespace sycl_device;
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("sycl");
    register_guard();
    c10::SetAllocator(kType, &allocator());
    at::setHostAllocator(kType, &pinned_allocator());
    install_cpu_allocator();
    register_hooks();
    register_storage_operators();
    register_copy();
    register_convolution();
    register_attention();
    register_dropout();
    register_recurrent();
    register_autocast();
    register_fallback();  // last: what is registered above stays
  });
}

}  // namespace octavo
