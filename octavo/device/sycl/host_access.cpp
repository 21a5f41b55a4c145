// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/host_access.h"

#include <atomic>

#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/memory_pool.h"

namespace octavo::sycl_device {

namespace {

std::atomic<bool> acts_as_gpu = false;

}  // namespace

bool kernels_run_on_host() {
  static const bool is_cpu = runtime().facts(0).is_cpu;  // SYCL's devices are GPUs, or the CPU
  return is_cpu && !acts_as_gpu;
}

bool host_reads(const c10::Storage& storage) {
  if (storage.device_type() != kType) return true;
  return kernels_run_on_host() || MemoryPool::instance().kind_of(storage.data()) != MemoryKind::device;
}

void act_as_gpu(bool is_gpu) noexcept { acts_as_gpu = is_gpu; }

}  // namespace octavo::sycl_device
