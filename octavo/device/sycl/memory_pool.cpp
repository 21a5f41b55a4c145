// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/fork.h"

namespace octavo::sycl_device {

namespace {

constexpr std::uint64_t kAlignment = 64;  // as torch's CPU tensors have it
constexpr const char* kLimitVariable = "OCTAVO_SYCL_MEMORY_BYTES";

std::optional<std::uint64_t> limit_of_environment() {
  const char* text = std::getenv(kLimitVariable);
  if (text == nullptr || *text == 0) return std::nullopt;
  std::uint64_t bytes = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, bytes);
  if (error != std::errc() || stop != end) {
    fail(ErrorCode::invalid_argument, "device.sycl", "expected a number of bytes in ", kLimitVariable, ", got '", text,
         "'");
  }
  return bytes;
}

}  // namespace

MemoryPool& MemoryPool::instance() {
  static auto* pool = new MemoryPool;  // never destroyed: tensors may be freed after statics are
  return *pool;
}

MemoryPool::MemoryPool() : first_limit_(limit_of_environment()) {
  hold_over_forks<[]() -> std::mutex& { return instance().mutex_; }>();
}

// ---- allocating and freeing

void* MemoryPool::allocate(c10::DeviceIndex device, MemoryKind kind, std::uint64_t bytes, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block block{device, kind, stream, bytes, rounded_up(bytes), {}};
  keep_what_is_done();
  void* memory = cached_.take(block);
  if (memory == nullptr) memory = reserve(block);
  MemoryFigures& figures = figures_[block.place()];
  figures.allocated.add(block.bytes);
  figures.active.add(block.size);
  used_.emplace(memory, std::move(block));
  return memory;
}

void* MemoryPool::reserve(const Block& block) {
  const bool host = block.kind == MemoryKind::host;
  const auto ask = [&] {
    const bool fits = host || block.size <= unreserved(block.device);
    return fits ? runtime().allocate(block.device, block.kind, block.size, kAlignment) : nullptr;
  };
  MemoryFigures& figures = figures_[block.place()];
  void* memory = ask();
  if (memory == nullptr) {
    ++figures.retries;
    release_cached(block.place());
    memory = ask();
  }
  if (memory == nullptr) refuse(block);
  figures.reserved.add(block.size);
  return memory;
}

void MemoryPool::refuse(const Block& block) {
  MemoryFigures& figures = figures_[block.place()];
  ++figures.refusals;
  const auto limit = limit_of(block.device);
  const auto allocated = figures.allocated.bytes.current;
  const auto cached = figures.reserved.bytes.current - figures.active.bytes.current;
  const bool host = block.kind == MemoryKind::host;
  const auto free = host ? runtime().free_bytes(block.device) : free_of(block.device);
  const std::string place = c10::str(host ? "the host of sycl:" : "sycl:", int{block.device});
  const std::string most = limit ? c10::str(", the limit is ", *limit) : "";
  C10_THROW_ERROR(OutOfMemoryError, c10::str("[device.memory] ", block.bytes, " bytes (rounded up to ", block.size,
                                             ") on ", place, " cannot be allocated: ", free, " are free, ", allocated,
                                             " allocated, ", cached, " cached", most));
}

bool MemoryPool::free(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return false;
  Block block = std::move(found->second);
  used_.erase(found);
  figures_[block.place()].allocated.remove(block.bytes);
  if (is_forked()) return true;
  try {
    if (block.other_streams.empty())
      keep(memory, block);
    else
      pending_.add(memory, std::move(block));
  } catch (...) {  // a deleter must not throw; the block stays active for good
  }
  return true;
}

// ---- the cache

void MemoryPool::keep(void* memory, const Block& block) {
  cached_.keep(memory, block);
  figures_[block.place()].active.remove(block.size);
}

void MemoryPool::keep_what_is_done() {
  pending_.take_done([this](void* memory, const Block& block) { keep(memory, block); });
}

void MemoryPool::release_cached(Place place) {
  const c10::DeviceIndex device = place.first;
  synchronize(device);  // a stream may still use what the host has freed
  keep_what_is_done();
  MemoryFigures& figures = figures_[place];
  cached_.clear(place, [&](void* memory, std::uint64_t size) {
    runtime().free(device, memory);
    figures.reserved.remove(size);
  });
}

void MemoryPool::empty_cache(c10::DeviceIndex device, bool host) {
  const std::lock_guard lock(mutex_);
  release_cached({device, host});
}

// ---- memory in use

/// Returns the block in which the address lies; null for memory that is not of this pool.
Block* MemoryPool::block_with(const void* address) {
  const auto after = used_.upper_bound(address);
  if (after == used_.begin()) return nullptr;
  auto& [begin, block] = *std::prev(after);
  const auto offset = static_cast<const std::byte*>(address) - static_cast<const std::byte*>(begin);
  return static_cast<std::uint64_t>(offset) < block.size ? &block : nullptr;
}

std::optional<MemoryKind> MemoryPool::kind_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const Block* const block = block_with(memory);
  return block ? std::optional(block->kind) : std::nullopt;
}

std::optional<c10::DeviceIndex> MemoryPool::device_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  return found == used_.end() ? std::nullopt : std::optional(found->second.device);
}

void MemoryPool::use_on(void* memory, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  Block* const block = block_with(memory);
  if (!block) return;
  if (block->device == stream.device_index() && block->stream == stream.id()) return;  // its own stream: in order
  auto& streams = block->other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

// ---- figures and limits

MemoryFigures MemoryPool::figures(c10::DeviceIndex device, bool host) {
  const std::lock_guard lock(mutex_);
  keep_what_is_done();
  return figures_[{device, host}];
}

void MemoryPool::reset_peak(c10::DeviceIndex device, bool host) {
  const std::lock_guard lock(mutex_);
  figures_[{device, host}].reset_peak();
}

void MemoryPool::reset_sums(c10::DeviceIndex device, bool host) {
  const std::lock_guard lock(mutex_);
  figures_[{device, host}].reset_sums();
}

void MemoryPool::set_limit(c10::DeviceIndex device, std::optional<std::uint64_t> bytes) {
  const std::lock_guard lock(mutex_);
  set_limits_[device] = bytes;
}

std::optional<std::uint64_t> MemoryPool::limit(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return limit_of(device);
}

std::uint64_t MemoryPool::total_bytes(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return total_of(device);
}

std::uint64_t MemoryPool::free_bytes(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return free_of(device);
}

std::uint64_t MemoryPool::available_bytes(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  keep_what_is_done();
  const MemoryFigures& figures = figures_[{device, /*host=*/false}];
  const std::uint64_t total = total_of(device), active = figures.active.bytes.current;
  const std::uint64_t cached = figures.reserved.bytes.current - active;
  return rounded_down(std::min(total - std::min(total, active), runtime().free_bytes(device) + cached));
}

std::optional<std::uint64_t> MemoryPool::limit_of(c10::DeviceIndex device) const {
  const auto found = set_limits_.find(device);
  return found != set_limits_.end() ? found->second : first_limit_;
}

std::uint64_t MemoryPool::total_of(c10::DeviceIndex device) const {
  const std::uint64_t there = runtime().facts(device).total_bytes;
  return std::min(limit_of(device).value_or(there), there);
}

std::uint64_t MemoryPool::unreserved(c10::DeviceIndex device) {
  const std::uint64_t total = total_of(device);
  const auto reserved = figures_[{device, /*host=*/false}].reserved.bytes.current;
  return total - std::min<std::uint64_t>(total, reserved);
}

std::uint64_t MemoryPool::free_of(c10::DeviceIndex device) {
  return rounded_down(std::min(unreserved(device), runtime().free_bytes(device)));
}

}  // namespace octavo::sycl_device
