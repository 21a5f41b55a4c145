// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr std::uint64_t kAlignment = 64;  // of torch's CPU tensors
constexpr std::uint64_t kSmallStep = 512, kLarge = 1 << 20;
constexpr const char* kLimitVariable = "OCTAVO_SYCL_MEMORY_BYTES";

std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t step = bytes <= kLarge ? kSmallStep : std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

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
  static auto* pool = new MemoryPool;  // tensors may be freed after statics are
  return *pool;
}

MemoryPool::MemoryPool() : first_limit_(limit_of_environment()) {}

void* MemoryPool::allocate(c10::DeviceIndex device, MemoryKind kind, std::uint64_t bytes) {
  const bool host = kind == MemoryKind::host;
  const c10::StreamId stream = host ? -1 : current_stream(device).id();
  const std::lock_guard lock(mutex_);
  const Block block{device, kind, stream, bytes, rounded(bytes), &figures_[{device, host}], {}};
  keep_what_is_done();
  void* memory = take_cached(block);
  if (memory == nullptr) memory = reserve(block);
  block.figures->allocated_bytes.add(static_cast<std::int64_t>(bytes));
  block.figures->allocated_blocks.add(1);
  block.figures->active_bytes.add(static_cast<std::int64_t>(block.size));
  block.figures->active_blocks.add(1);
  used_.emplace(memory, block);
  return memory;
}

void* MemoryPool::take_cached(const Block& block) {
  const auto found = cached_.find({block.device, block.kind, block.stream, block.size});
  if (found == cached_.end() || found->second.empty()) return nullptr;
  void* memory = found->second.back();
  found->second.pop_back();
  return memory;
}

void* MemoryPool::reserve(const Block& block) {
  const auto ask = [&] {
    return fits(block) ? runtime().allocate(block.device, block.kind, block.size, kAlignment) : nullptr;
  };
  void* memory = ask();
  if (memory == nullptr) {
    ++block.figures->retries;
    release_cached(block.place());
    memory = ask();
  }
  if (memory == nullptr) refuse(block);
  block.figures->reserved_bytes.add(static_cast<std::int64_t>(block.size));
  block.figures->reserved_blocks.add(1);
  return memory;
}

bool MemoryPool::fits(const Block& block) const {
  if (block.kind == MemoryKind::host) return true;
  const auto limit = limit_of(block.device);
  const auto reserved = static_cast<std::uint64_t>(block.figures->reserved_bytes.current);
  return !limit || (reserved <= *limit && block.size <= *limit - reserved);
}

void MemoryPool::refuse(const Block& block) {
  ++block.figures->refusals;
  const auto limit = limit_of(block.device);
  const auto allocated = block.figures->allocated_bytes.current, active = block.figures->active_bytes.current;
  const auto reserved = block.figures->reserved_bytes.current;
  const auto free = limit ? *limit - std::min<std::uint64_t>(*limit, reserved) : runtime().free_bytes(block.device);
  const std::string place = c10::str(block.kind == MemoryKind::host ? "the host of sycl:" : "sycl:", int{block.device});
  const std::string most = limit ? c10::str(", the limit is ", *limit) : "";
  C10_THROW_ERROR(OutOfMemoryError, c10::str("[device.memory] expected ", block.bytes, " bytes (rounded ", block.size,
                                             ") on ", place, ", got none: ", free, " are free, ", allocated,
                                             " allocated, ", reserved - active, " cached", most));
}

bool MemoryPool::free(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return false;
  Block block = std::move(found->second);
  used_.erase(found);
  block.figures->allocated_bytes.remove(static_cast<std::int64_t>(block.bytes));
  block.figures->allocated_blocks.remove(1);
  if (block.other_streams.empty()) {
    keep(memory, block);
    return true;
  }
  std::vector<Event> uses;
  for (const c10::Stream& stream : block.other_streams) {
    uses.push_back(runtime().create_event());
    runtime().record(uses.back(), queue_of(stream));
  }
  freed_.push_back({memory, std::move(block), std::move(uses)});
  return true;
}

void MemoryPool::keep(void* memory, const Block& block) {
  block.figures->active_bytes.remove(static_cast<std::int64_t>(block.size));
  block.figures->active_blocks.remove(1);
  cached_[{block.device, block.kind, block.stream, block.size}].push_back(memory);
}

void MemoryPool::keep_what_is_done() {
  if (freed_.empty()) return;
  std::erase_if(freed_, [&](Freed& freed) {
    if (!std::all_of(freed.uses.begin(), freed.uses.end(), runtime().is_done)) return false;
    std::for_each(freed.uses.begin(), freed.uses.end(), runtime().destroy_event);
    keep(freed.memory, freed.block);
    return true;
  });
}

void MemoryPool::release_cached(Place place) {
  synchronize(place.first);  // a stream may still use what the host has freed
  keep_what_is_done();
  MemoryFigures& figures = figures_[place];
  for (auto& [key, blocks] : cached_) {
    const auto& [device, kind, stream, size] = key;
    if (Place{device, kind == MemoryKind::host} != place) continue;
    for (void* memory : blocks) runtime().free(device, memory);
    figures.reserved_bytes.remove(static_cast<std::int64_t>(size * blocks.size()));
    figures.reserved_blocks.remove(static_cast<std::int64_t>(blocks.size()));
    blocks.clear();
  }
}

void MemoryPool::empty_cache(c10::DeviceIndex device, bool host) {
  const std::lock_guard lock(mutex_);
  release_cached({device, host});
}

std::optional<MemoryKind> MemoryPool::kind_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  return found == used_.end() ? std::nullopt : std::optional(found->second.kind);
}

std::optional<c10::DeviceIndex> MemoryPool::device_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  return found == used_.end() ? std::nullopt : std::optional(found->second.device);
}

void MemoryPool::use_on(void* memory, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  const Block& block = found->second;
  if (block.device == stream.device_index() && block.stream == stream.id()) return;  // its own: in order
  auto& streams = found->second.other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

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
  limits_[device] = bytes;
}

std::optional<std::uint64_t> MemoryPool::limit(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return limit_of(device);
}

std::optional<std::uint64_t> MemoryPool::limit_of(c10::DeviceIndex device) const {
  const auto found = limits_.find(device);
  return found != limits_.end() ? found->second : first_limit_;
}

}  // namespace octavo::sycl_device
