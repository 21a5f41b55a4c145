// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/host_access.h"

#include <atomic>

#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/memory_pool.h"

namespace octavo::sycl_device {

namespace {

std::atomic<bool> is_private_anyway = false;

}  // namespace

bool host_reads(const c10::Storage& storage) {
  if (storage.device_type() != kType) return true;
  static const bool is_cpu = runtime().facts(0).is_cpu;  // SYCL's devices are GPUs, or the CPU
  if (is_cpu && !is_private_anyway) return true;
  return MemoryPool::instance().kind_of(storage.data()) != MemoryKind::device;
}

void keep_device_memory_private(bool is_private) noexcept { is_private_anyway = is_private; }

}  // namespace octavo::sycl_device
