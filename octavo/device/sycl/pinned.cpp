// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/pinned.h"

#include <cstring>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/memory_pool.h"

namespace octavo::sycl_device {

namespace {

constexpr bool kHost = true;

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return sycl_device::allocate(current_device(), MemoryKind::host, bytes, c10::kCPU);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool record_event(void* memory, void*, c10::Stream stream) override {
    if (!is_pinned(memory)) return false;
    MemoryPool::instance().use_on(memory, stream);
    return true;
  }
  void empty_cache() override {
    for_devices([](c10::DeviceIndex device) { MemoryPool::instance().empty_cache(device, kHost); });
  }

  at::HostStats get_stats() override {
    at::HostStats stats;
    for_devices([&](c10::DeviceIndex device) {
      const MemoryFigures figures = MemoryPool::instance().figures(device, kHost);
      add(stats.active_requests, figures.allocated.blocks);
      add(stats.active_bytes, figures.allocated.bytes);
      add(stats.allocations, figures.reserved.blocks);
      add(stats.allocated_bytes, figures.reserved.bytes);
      stats.num_host_alloc += figures.reserved.blocks.added;
      stats.num_host_free += figures.reserved.blocks.removed;
    });
    return stats;
  }
  void reset_accumulated_stats() override {
    for_devices([](c10::DeviceIndex device) { MemoryPool::instance().reset_sums(device, kHost); });
  }
  void reset_peak_stats() override {
    for_devices([](c10::DeviceIndex device) { MemoryPool::instance().reset_peak(device, kHost); });
  }

 private:
  template <class Body>
  static void for_devices(Body body) {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) body(device);
  }
  static void add(c10::CachingAllocator::Stat& stat, const Gauge& gauge) {
    stat.current += gauge.current;
    stat.peak += gauge.peak;
    stat.allocated += gauge.added;
    stat.freed += gauge.removed;
  }
};

}  // namespace

at::HostAllocator& pinned_allocator() {
  static auto* only = new PinnedAllocator;
  return *only;
}

bool is_pinned(const void* memory) { return MemoryPool::instance().kind_of(memory) == MemoryKind::host; }

}  // namespace octavo::sycl_device
