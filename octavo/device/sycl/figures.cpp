// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/figures.h"

#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

c10::DeviceIndex checked(int device) {
  require_device(device);
  return static_cast<c10::DeviceIndex>(device);
}

}  // namespace

int count_devices() noexcept { return device_count(); }

bool was_used() noexcept { return is_initialized(); }

DeviceFacts facts(int device) { return runtime().facts(checked(device)); }

at::Generator default_generator_of(int device) { return default_generator(checked(device)); }

void set_memory_limit(int device, std::optional<std::uint64_t> bytes) {
  MemoryPool::instance().set_limit(checked(device), bytes);
}

std::optional<std::uint64_t> memory_limit(int device) { return MemoryPool::instance().limit(checked(device)); }

}  // namespace octavo::sycl_device
