// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/devices.h"

#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

namespace octavo::sycl_backend {

namespace {

/// The CPU device comes with a package that registers itself nowhere: its library lies beside libsycl. SYCL reads these
/// variables at its first query; the user's own settings stay.
void prepare_environment() {
  Dl_info info;
  const auto* inside = reinterpret_cast<const void*>(&sycl::device::get_devices);
  if (dladdr(inside, &info) != 0 && info.dli_fname != nullptr) {
    const std::string libsycl = info.dli_fname;
    const std::string driver = libsycl.substr(0, libsycl.rfind('/') + 1) + "libintelocl.so";
    if (access(driver.c_str(), R_OK) == 0) setenv("OCL_ICD_FILENAMES", driver.c_str(), 0);
  }
  setenv("SYCL_CACHE_PERSISTENT", "1", 0);
}

std::vector<Device> find_devices() {
  prepare_environment();
  // A GPU is there twice, once in each driver: those of the first driver count.
  for (const auto type : {sycl::info::device_type::gpu, sycl::info::device_type::cpu}) {
    for (const auto driver : {sycl::backend::ext_oneapi_level_zero, sycl::backend::opencl}) {
      std::vector<Device> found;
      for (const sycl::device& device : sycl::device::get_devices(type)) {
        if (device.get_backend() != driver || !device.has(sycl::aspect::usm_device_allocations)) continue;
        found.push_back({device, device.get_platform().khr_get_default_context()});
      }
      if (!found.empty()) return found;
    }
  }
  return {};
}

}  // namespace

const std::vector<Device>& devices() {
  static const auto* all = new std::vector<Device>(guarded("kernels.sycl", find_devices));
  return *all;
}

const Device& device_at(int index) {
  const int count = static_cast<int>(devices().size());
  if (index < 0 || index >= count) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", "expected a device from 0 to ", count - 1, ", got ", index);
  }
  return devices()[static_cast<std::size_t>(index)];
}

sycl::queue& host_queue() {
  static auto* queue = guarded("kernels.sycl", [] {
    std::vector<sycl::device> candidates;
    for (const Device& d : devices()) candidates.push_back(d.device);
    for (const sycl::device& cpu : sycl::device::get_devices(sycl::info::device_type::cpu)) candidates.push_back(cpu);
    for (const sycl::device& device : candidates) {
      if (!device.has(sycl::aspect::usm_system_allocations)) continue;
      const sycl::context context = device.get_platform().khr_get_default_context();
      return new sycl::queue(context, device, rethrow, sycl::property::queue::in_order());
    }
    fail(ErrorCode::unsupported, "kernels.sycl", "expected a device that reads ordinary memory, got ",
         candidates.size(), " that read only SYCL's own; intel-opencl-rt provides the CPU");
  });
  return *queue;
}

void rethrow(sycl::exception_list failures) {
  for (const std::exception_ptr& failure : failures) std::rethrow_exception(failure);
}

}  // namespace octavo::sycl_backend
