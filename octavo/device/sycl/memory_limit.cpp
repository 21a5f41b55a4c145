// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_limit.h"

#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/memory_pool.h"

namespace octavo::sycl_device {

void set_memory_limit(int device, std::optional<std::uint64_t> bytes) {
  MemoryPool::instance().set_limit(require_device(device), bytes);
}

std::optional<std::uint64_t> memory_limit(int device) { return MemoryPool::instance().limit(require_device(device)); }

}  // namespace octavo::sycl_device
