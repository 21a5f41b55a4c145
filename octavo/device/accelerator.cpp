// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/accelerator.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>

#include "octavo/device/accelerator/cpu.h"
#include "octavo/device/accelerator/cuda.h"
#include "octavo/device/accelerator/sycl.h"
#include "octavo/device/accelerator/xpu.h"
#include "octavo/device/pinned.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

const at::AcceleratorHooksInterface& hooks(c10::DeviceType type) {
  return at::globalContext().getAcceleratorHooksInterface(type);
}

c10::impl::VirtualGuardImpl guard(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

c10::CachingDeviceAllocator::DeviceStats stats_of(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

/// The entry for all pools together.
const c10::CachingAllocator::Stat& all_pools(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

// ---- devices

std::string Accelerator::why_absent() const {
  return hooks(type_).isBuilt() ? "no such device is visible to this process" : "this torch is built without " + name_;
}

c10::Device Accelerator::require(std::string_view function, WhichDevice index) const {
  const std::string where = "device." + std::string(function);
  const std::int64_t count = device_count();
  if (count == 0)
    fail(ErrorCode::unsupported, where, "expected a device of type ", name_, ", got none: ", why_absent());
  if (index && (*index < 0 || *index >= count)) {
    fail(ErrorCode::invalid_argument, where, "expected the index of one of ", count, " ", name_, " devices, got ",
         *index);
  }
  at::globalContext().lazyInitDevice(type_);
  return {type_, static_cast<c10::DeviceIndex>(index ? *index : hooks(type_).getCurrentDevice())};
}

std::string Accelerator::device_name(WhichDevice index) const {
  return index ? name_ + ":" + std::to_string(*index) : name_;
}

c10::Device Accelerator::device(WhichDevice index) const {
  return {type_, static_cast<c10::DeviceIndex>(index.value_or(-1))};
}

std::int64_t Accelerator::device_count() const { return hooks(type_).deviceCount(); }

std::int64_t Accelerator::current_device() const { return require("current_device").index(); }

void Accelerator::set_device(std::int64_t index) const {
  const c10::Device device = require("set_device", index);
  guard(device).setDevice(device);
}

void Accelerator::synchronize(WhichDevice index) const {
  const c10::Device device = require("synchronize", index);
  guard(device).synchronizeDevice(device.index());
}

// ---- random numbers

at::Generator Accelerator::default_generator(WhichDevice index) const {
  return at::globalContext().defaultGenerator(require("default_generator", index));
}

at::Tensor Accelerator::get_rng_state(WhichDevice index) const {
  at::Generator generator = default_generator(index);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void Accelerator::set_rng_state(const at::Tensor& state, WhichDevice index) const {
  at::Generator generator = default_generator(index);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void Accelerator::manual_seed(std::uint64_t seed) const {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

void Accelerator::manual_seed_all(std::uint64_t seed) const {
  for (std::int64_t index = 0; index < device_count(); ++index) {
    at::Generator generator = default_generator(index);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

std::uint64_t Accelerator::initial_seed() const {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();  // the seed that was set last: torch calls it initial
}

// ---- streams

c10::Stream Accelerator::current_stream(WhichDevice index) const {
  const c10::Device device = require("current_stream", index);
  return guard(device).getStream(device);
}

c10::Stream Accelerator::default_stream(WhichDevice index) const {
  const c10::Device device = require("default_stream", index);
  return guard(device).getDefaultStream(device);
}

c10::Stream Accelerator::new_stream(WhichDevice index, int priority) const {
  const c10::Device device = require("new_stream", index);
  return guard(device).getNewStream(device, priority);
}

c10::Stream Accelerator::exchange_stream(c10::Stream stream) const {
  return guard(require("exchange_stream", stream.device_index())).exchangeStream(stream);
}

// ---- memory

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
  const auto free = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  const auto stats = stats_of(device);
  return static_cast<std::int64_t>(free) + all_pools(stats.reserved_bytes).current -
         all_pools(stats.allocated_bytes).current;
}

at::Tensor Accelerator::pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes) const {
  return octavo::pinned_zeros(shape, dtype, alignment_bytes, require("pinned_zeros").type());
}

// ---- precisions

std::vector<at::ScalarType> Accelerator::supported_dtypes() const {
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  if (is_fp16_supported()) dtypes.push_back(at::kHalf);
  if (is_bf16_supported()) dtypes.push_back(at::kBFloat16);
  return dtypes;
}

// ---- by name

std::unique_ptr<Accelerator> make_accelerator(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuAccelerator>();
  if (name == "cuda") return std::make_unique<CudaAccelerator>();
  if (name == "xpu") return std::make_unique<XpuAccelerator>();
  if (name == "sycl") return std::make_unique<SyclAccelerator>();
  try {
    return std::make_unique<Accelerator>(c10::Device(name).type(), name);
  } catch (const c10::Error&) {
    fail(ErrorCode::invalid_argument, "device.make_accelerator",
         "expected cpu, cuda, xpu, sycl or another device type of this torch, got '", name, "'");
  }
}

}  // namespace octavo
