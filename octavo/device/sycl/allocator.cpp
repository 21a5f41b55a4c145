// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/allocator.h"

#include "octavo/device/sycl/cpu_allocator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

using c10::CachingDeviceAllocator::DeviceStats;

void fill(c10::CachingAllocator::StatArray& all, const Gauge& gauge) {
  all[0] = {gauge.current, gauge.peak, gauge.added, gauge.removed};  // the aggregate; there are no separate pools
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    return sycl_device::allocate(device, MemoryKind::shared, bytes, {kType, device});
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const Queue queue = queue_of(current_stream(current_device()));
    runtime().copy(queue, to, from, bytes);  // of any kind of memory, which the host may not read
    runtime().wait(queue);
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      MemoryPool::instance().empty_cache(device, /*host=*/false);
    }
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    MemoryPool::instance().use_on(memory.get(), stream);  // not the context: a lazy clone has one of its own
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    require_device(device);
    const MemoryFigures figures = MemoryPool::instance().figures(device, /*host=*/false);
    DeviceStats stats;
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
  void resetAccumulatedStats(c10::DeviceIndex device) override { MemoryPool::instance().reset_sums(device, false); }
  void resetPeakStats(c10::DeviceIndex device) override { MemoryPool::instance().reset_peak(device, false); }

  /// Free and total bytes: of the limit, where there is one. A block of all that is free can be allocated.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    require_device(device);
    return {MemoryPool::instance().free_bytes(device), MemoryPool::instance().total_bytes(device)};
  }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* only = new Allocator;
  return *only;
}

c10::DataPtr allocate(c10::DeviceIndex device, MemoryKind kind, std::size_t bytes, c10::Device as) {
  const bool is_pinned = kind == MemoryKind::host && as.is_cpu();
  const c10::StreamId stream = is_pinned ? MemoryPool::kNoStream : current_stream(device).id();
  void* memory = bytes == 0 ? nullptr : MemoryPool::instance().allocate(device, kind, bytes, stream);
  c10::DataPtr data(memory, memory, &release, as);
  // What another thread freed a moment ago the stream may still use; a CPU kernel does not wait its turn there.
  if (OnDeviceMemory::is_here()) settle(device);
  return data;
}

void release(void* memory) {
  if (memory != nullptr && !MemoryPool::instance().free(memory)) release_ordinary(memory);
}

}  // namespace octavo::sycl_device
