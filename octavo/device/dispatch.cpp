// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/dispatch.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

Queue queue_of_current_stream(c10::Device device) {
  if (device.is_cpu()) return {};
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return {stream.native_handle(), stream.device_index()};
}

}  // namespace

const KernelTable& kernels_for(c10::Device device) {
  switch (device.type()) {
    case c10::DeviceType::CPU: return host_backend();
    case c10::DeviceType::CUDA: return backend("cuda");
    case c10::DeviceType::XPU: return backend("sycl");
    default:
      if (is_sycl(device)) return backend("sycl");
      fail(ErrorCode::unsupported, "device.dispatch", "expected a tensor on cpu, cuda, xpu or sycl, got one on ",
           device.str());
  }
}

bool is_sycl(c10::Device device) {
  return device.type() == c10::DeviceType::PrivateUse1 && c10::get_privateuse1_backend() == "sycl";
}

LaunchScope::LaunchScope(c10::Device device)
    : kernels_(kernels_for(device)), device_is_current_(device), queue_(queue_of_current_stream(device)) {}

void wait_for_current_stream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

Queue sycl_queue(c10::Device device) {
  if (!device.is_cpu() && !device.is_xpu() && !is_sycl(device)) {
    fail(ErrorCode::invalid_argument, "device.sycl_queue", "expected a device cpu, sycl or xpu, got ", device.str());
  }
  const DeviceRuntime& runtime = *backend("sycl").runtime;
  return device.is_cpu() ? runtime.host_queue() : queue_of_current_stream(device);
}

void for_parts(c10::Device device, std::int64_t count, std::int64_t grain,
               const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count == 0) return;
  const bool kernels_are_parallel = !device.is_cpu() || host_backend().runtime != nullptr;
  if (kernels_are_parallel) return body(0, count);
  at::parallel_for(0, count, grain, [&](std::int64_t first, std::int64_t last) { body(first, last); });
}

}  // namespace octavo
