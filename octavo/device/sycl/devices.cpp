// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/devices.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <pthread.h>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

std::atomic<bool> used = false, forked = false;
thread_local c10::DeviceIndex device_of_thread = 0;

/// The back end's table, as `runtime` returns it; reading it does not count as a use of the device.
const DeviceRuntime& table() {
  static const DeviceRuntime& found = []() -> const DeviceRuntime& {
    const DeviceRuntime* table = backend("sycl").runtime;
    if (table == nullptr) fail(ErrorCode::internal, "device.sycl", "the sycl back end has no run time of a device");
    return *table;
  }();
  if (forked) {
    fail(ErrorCode::unsupported, "device.sycl",
         "this process was forked from one that had used the device sycl, and cannot ",
         "use it: start processes that use it with 'spawn'");
  }
  return found;
}

}  // namespace

const DeviceRuntime& runtime() {
  const DeviceRuntime& found = table();
  static std::once_flag first_use;
  std::call_once(first_use, [] {
    used = true;
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  });
  return found;
}

bool is_forked() noexcept { return forked; }

bool is_initialized() noexcept { return used; }

c10::DeviceIndex device_count() noexcept {
  static const int count = [] {
    try {
      return std::min(table().device_count(), kMostDevices);
    } catch (const std::exception&) {  // torch needs a number; whoever uses the device is told the reason
      return 0;
    }
  }();
  return static_cast<c10::DeviceIndex>(count);
}

c10::DeviceIndex require_device(int device) {
  table();  // throws, with the reason, where there is no device
  const c10::DeviceIndex count = device_count();
  if (device >= 0 && device < count) return static_cast<c10::DeviceIndex>(device);
  fail(ErrorCode::invalid_argument, "device.sycl", "expected a device from sycl:0 to sycl:", count - 1,
       ", got sycl:", device);
}

DeviceFacts facts(int device) { return runtime().facts(require_device(device)); }

c10::DeviceIndex current_device() noexcept { return device_of_thread; }

void set_current_device(c10::DeviceIndex device) noexcept { device_of_thread = device; }

}  // namespace octavo::sycl_device
