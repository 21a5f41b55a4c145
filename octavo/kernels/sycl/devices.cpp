// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/devices.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <set>
#include <string>
#include <unistd.h>

#include "octavo/kernels/lanes/device_list.h"

namespace octavo::sycl_backend {

namespace {

std::string path_of_libsycl() {
  Dl_info info;
  const auto* inside = reinterpret_cast<const void*>(&sycl::device::get_devices);
  return dladdr(inside, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

/// Sets a variable of the environment unless the user has set it.
void set_default(const char* variable, const char* value) { setenv(variable, value, /*overwrite=*/0); }

/// Sets the variables that SYCL reads at its first query.
void prepare_environment() {
  // The CPU device comes with a package that registers itself nowhere, but its library lies beside libsycl.
  const std::string libsycl = path_of_libsycl();
  const std::string driver = libsycl.substr(0, libsycl.rfind('/') + 1) + "libintelocl.so";
  if (access(driver.c_str(), R_OK) == 0) set_default("OCL_ICD_FILENAMES", driver.c_str());
  set_default("SYCL_CACHE_PERSISTENT", "1");
  // Compilers for GPUs otherwise round `/` and square roots to some near value, and rules name the nearest. This is the
  // only way to their options: those of a build from source do not reach them.
  set_default("SYCL_PROGRAM_COMPILE_OPTIONS", "-cl-fp32-correctly-rounded-divide-sqrt");
  // Level Zero otherwise allocates at most 4 GB at a time on some GPUs.
  set_default("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS", "1");
}

/// Takes a file of the process from dl_iterate_phdr, and keeps its path where the file is a run time of SYCL.
int keep_run_time(dl_phdr_info* file, std::size_t, void* found) {
  const std::filesystem::path path = file->dlpi_name;
  if (path.filename().string().starts_with("libsycl.so")) {
    static_cast<std::set<std::filesystem::path>*>(found)->insert(std::filesystem::weakly_canonical(path));
  }
  return 0;
}

/// Throws where the process has a second run time of SYCL. What one of them made, such as queues, is useless to the
/// other, and symbols of one may be taken for those of the other.
void require_single_run_time() {
  const std::filesystem::path own = std::filesystem::weakly_canonical(path_of_libsycl());
  std::set<std::filesystem::path> found;
  dl_iterate_phdr(keep_run_time, &found);
  found.erase(own);
  if (found.empty()) return;
  fail(
      ErrorCode::unsupported, "kernels.sycl",
      "two SYCL run times are loaded in this process: ", found.begin()->string(), " and ", own.string(),
      ", which Octavo was built with: build Octavo against the first ",
      "one's version of intel-sycl-rt, which torch's xpu wheels fix, or do not load the library that brings the other");
}

std::vector<Device> find_devices() {
  require_single_run_time();
  prepare_environment();
  // A GPU is listed twice, once by each driver: those of the first driver are used.
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
  static const auto* all = new std::vector<Device>(with_sycl_errors("kernels.sycl", find_devices));
  return *all;
}

const Device& device_at(int index) { return lanes::listed_device(devices(), index, "kernels.sycl"); }

sycl::queue& host_queue() {
  static auto* queue = with_sycl_errors("kernels.sycl", [] {
    std::vector<sycl::device> candidates;
    for (const Device& d : devices()) candidates.push_back(d.device);
    for (const sycl::device& cpu : sycl::device::get_devices(sycl::info::device_type::cpu)) candidates.push_back(cpu);
    for (const sycl::device& device : candidates) {
      if (!device.has(sycl::aspect::usm_system_allocations)) continue;
      const sycl::context context = device.get_platform().khr_get_default_context();
      return new sycl::queue(context, device, rethrow, sycl::property::queue::in_order());
    }
    fail(ErrorCode::unsupported, "kernels.sycl", "none of the ", candidates.size(),
         " SYCL devices reads ordinary memory of the host: install intel-opencl-rt, which provides the CPU");
  });
  static const pid_t owner = getpid();
  lanes::require_not_forked(owner, "SYCL", "kernels.sycl");
  return *queue;
}

std::mutex& submission_mutex() {
  static auto* mutex = new std::mutex;  // threads may still submit while the process ends
  return *mutex;
}

void rethrow(sycl::exception_list failures) {
  for (const std::exception_ptr& failure : failures) std::rethrow_exception(failure);
}

}  // namespace octavo::sycl_backend
