// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/allocators.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

thread_local c10::DeviceIndex scope = -1;  // the device of OnDeviceMemory
c10::Allocator* ordinary = nullptr;        // torch's own for the CPU

template <class Body>
void for_devices(Body body) {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) body(device);
}

// ---- memory of the device

class DeviceAllocator final : public c10::DeviceAllocator {
  using Stats = c10::CachingDeviceAllocator::DeviceStats;
  static constexpr bool kHost = false;

 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    return sycl_device::allocate(device, MemoryKind::shared, bytes, {kType, device});
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const Queue queue = queue_of(current_stream(current_device()));
    runtime().copy(queue, to, from, bytes);  // by the queue: the host may be unable to read the memory
    runtime().wait(queue);
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    for_devices([](c10::DeviceIndex device) { MemoryPool::instance().empty_cache(device, kHost); });
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    MemoryPool::instance().use_on(memory.get(), stream);  // not the context: a lazy clone has one of its own
  }

  Stats getDeviceStats(c10::DeviceIndex device) override {
    require_device(device);
    const MemoryFigures figures = MemoryPool::instance().figures(device, kHost);
    Stats stats;
    fill(stats.allocated_bytes, figures.allocated.bytes);
    fill(stats.requested_bytes, figures.allocated.bytes);
    fill(stats.reserved_bytes, figures.reserved.bytes);
    fill(stats.active_bytes, figures.active.bytes);
    fill(stats.allocation, figures.allocated.blocks);
    fill(stats.segment, figures.reserved.blocks);
    fill(stats.active, figures.active.blocks);
    stats.num_alloc_retries = figures.retries;
    stats.num_ooms = figures.refusals;
    stats.num_device_alloc = figures.reserved.blocks.added;
    stats.num_device_free = figures.reserved.blocks.removed;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    require_device(device);
    MemoryPool::instance().reset_sums(device, kHost);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    require_device(device);
    MemoryPool::instance().reset_peak(device, kHost);
  }

  /// Returns free and total bytes, within the limit where there is one. One block of all free bytes can be allocated.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    require_device(device);
    return {MemoryPool::instance().free_bytes(device), MemoryPool::instance().total_bytes(device)};
  }

 private:
  static void fill(c10::CachingAllocator::StatArray& all, const Gauge& gauge) {
    all[0] = {gauge.current, gauge.peak, gauge.added, gauge.removed};  // the aggregate; there are no separate pools
  }
};

// ---- page-locked memory of the host

class PinnedAllocator final : public at::HostAllocator {
  static constexpr bool kHost = true;

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
  static void add(c10::CachingAllocator::Stat& stat, const Gauge& gauge) {
    stat.current += gauge.current;
    stat.peak += gauge.peak;
    stat.allocated += gauge.added;
    stat.freed += gauge.removed;
  }
};

// ---- memory of CPU tensors

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (scope < 0) return ordinary->allocate(bytes);
    return sycl_device::allocate(scope, MemoryKind::shared, bytes, c10::kCPU);
  }
  // Memory may be freed outside of the scope in which it was allocated: there is one deleter for both kinds.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { ordinary->copy_data(to, from, bytes); }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* only = new DeviceAllocator;
  return *only;
}

at::HostAllocator& pinned_allocator() {
  static auto* only = new PinnedAllocator;
  return *only;
}

bool is_pinned(const void* memory) { return MemoryPool::instance().kind_of(memory) == MemoryKind::host; }

c10::Allocator& cpu_allocator() {
  static auto* only = new CpuAllocator;
  return *only;
}

void install_cpu_allocator() {
  constexpr std::uint8_t kHighest = 255;
  ordinary = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&cpu_allocator(), kHighest);
}

OnDeviceMemory::OnDeviceMemory(c10::DeviceIndex device) : before_(scope) { scope = device; }

OnDeviceMemory::~OnDeviceMemory() { scope = before_; }

c10::DataPtr allocate(c10::DeviceIndex device, MemoryKind kind, std::size_t bytes, c10::Device as) {
  const bool is_pinned = kind == MemoryKind::host && as.is_cpu();
  const c10::StreamId stream = is_pinned ? MemoryPool::kNoStream : current_stream(device).id();
  void* memory = bytes == 0 ? nullptr : MemoryPool::instance().allocate(device, kind, bytes, stream);
  c10::DataPtr data(memory, memory, &release, as);
  // The stream may still use what another thread freed a moment ago, and a CPU kernel does not wait for the stream.
  if (scope >= 0) settle(device);
  return data;
}

void release(void* memory) {
  if (memory != nullptr && !MemoryPool::instance().free(memory)) ordinary->raw_deleter()(memory);
}

}  // namespace octavo::sycl_device
