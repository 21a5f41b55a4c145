// SPDX-License-Identifier: Apache-2.0
// The defaults of Accelerator for memory: the figures of torch's allocator for the device type.
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "octavo/device/accelerator.h"
#include "octavo/device/pinned.h"

namespace octavo {

namespace {

c10::CachingDeviceAllocator::DeviceStats stats_of(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

/// The entry for all pools together.
const c10::CachingAllocator::Stat& all_pools(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

void Accelerator::empty_cache() const { c10::getDeviceAllocator(require("empty_cache").type())->emptyCache(); }

std::int64_t Accelerator::memory_allocated(WhichDevice index) const {
  return all_pools(stats_of(require("memory_allocated", index)).allocated_bytes).current;
}

std::int64_t Accelerator::max_memory_allocated(WhichDevice index) const {
  return all_pools(stats_of(require("max_memory_allocated", index)).allocated_bytes).peak;
}

std::int64_t Accelerator::memory_reserved(WhichDevice index) const {
  return all_pools(stats_of(require("memory_reserved", index)).reserved_bytes).current;
}

std::int64_t Accelerator::max_memory_reserved(WhichDevice index) const {
  return all_pools(stats_of(require("max_memory_reserved", index)).reserved_bytes).peak;
}

void Accelerator::reset_peak_memory_stats(WhichDevice index) const {
  const c10::Device device = require("reset_peak_memory_stats", index);
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

std::map<std::string, std::int64_t> Accelerator::memory_stats(WhichDevice index) const {
  const auto stats = stats_of(require("memory_stats", index));
  std::map<std::string, std::int64_t> named = {{"num_alloc_retries", stats.num_alloc_retries},
                                               {"num_ooms", stats.num_ooms}};
  const auto add = [&](const std::string& name, const auto& stat) {
    named[name + ".all.current"] = all_pools(stat).current;
    named[name + ".all.peak"] = all_pools(stat).peak;
    named[name + ".all.allocated"] = all_pools(stat).allocated;
    named[name + ".all.freed"] = all_pools(stat).freed;
  };
  add("allocation", stats.allocation);
  add("segment", stats.segment);
  add("active", stats.active);
  add("allocated_bytes", stats.allocated_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("active_bytes", stats.active_bytes);
  add("inactive_split_bytes", stats.inactive_split_bytes);
  add("requested_bytes", stats.requested_bytes);
  return named;
}

std::int64_t Accelerator::total_memory(WhichDevice index) const {
  const c10::Device device = require("total_memory", index);
  return static_cast<std::int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

std::int64_t Accelerator::available_memory(WhichDevice index) const {
  const c10::Device device = require("available_memory", index);
  const auto [free, total] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  const auto stats = stats_of(device);
  const std::int64_t allocated = all_pools(stats.allocated_bytes).current;
  const std::int64_t cached = all_pools(stats.reserved_bytes).current - allocated;
  const std::int64_t available =
      std::min(static_cast<std::int64_t>(free) + cached, static_cast<std::int64_t>(total) - allocated);
  return std::max<std::int64_t>(available, 0);
}

at::Tensor Accelerator::pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes) const {
  return octavo::pinned_zeros(shape, dtype, alignment_bytes, require("pinned_zeros").type());
}

}  // namespace octavo
