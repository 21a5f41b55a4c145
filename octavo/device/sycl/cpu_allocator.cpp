// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include "octavo/device/sycl/allocator.h"

namespace octavo::sycl_device {

namespace {

thread_local c10::DeviceIndex scope = -1;
c10::Allocator* ordinary = nullptr;

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (scope < 0) return ordinary->allocate(bytes);
    return sycl_device::allocate(scope, MemoryKind::shared, bytes, c10::kCPU);
  }
  // Memory may be freed outside of the scope that it was allocated in: one deleter for both kinds.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { ordinary->copy_data(to, from, bytes); }
};

}  // namespace

OnDeviceMemory::OnDeviceMemory(c10::DeviceIndex device) : before_(scope) { scope = device; }

OnDeviceMemory::~OnDeviceMemory() { scope = before_; }

bool OnDeviceMemory::is_here() noexcept { return scope >= 0; }

void install_cpu_allocator() {
  constexpr std::uint8_t kHighest = 255;
  ordinary = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&cpu_allocator(), kHighest);
}

c10::Allocator& cpu_allocator() {
  static auto* only = new CpuAllocator;
  return *only;
}

void release_ordinary(void* memory) { ordinary->raw_deleter()(memory); }

}  // namespace octavo::sycl_device
