// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <pthread.h>

#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr std::uint64_t kAlignment = 64;  // of torch's CPU tensors
constexpr std::uint64_t kSmallStep = 512, kLarge = 1 << 20, kLargestStep = 2 << 20;
constexpr const char* kLimitVariable = "OCTAVO_SYCL_MEMORY_BYTES";

std::uint64_t step_of(std::uint64_t bytes) {
  return bytes <= kLarge ? kSmallStep : std::min(std::bit_floor(bytes) / 8, kLargestStep);
}

std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t step = step_of(bytes);
  return (bytes / step + (bytes % step != 0)) * step;
}

std::uint64_t rounded_down(std::uint64_t bytes) { return bytes / step_of(bytes) * step_of(bytes); }

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

MemoryPool::MemoryPool() : first_limit_(limit_of_environment()) {
  // a child frees tensors too, and no other thread is there to unlock
  pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                 [] { instance().mutex_.unlock(); });
}

void* MemoryPool::allocate(c10::DeviceIndex device, MemoryKind kind, std::uint64_t bytes, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block block{device, kind, stream, bytes, rounded(bytes), &figures_[{device, kind == MemoryKind::host}], {}};
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

void* MemoryPool::take_cached(Block& block) {
  const auto key = [&](std::uint64_t size) { return Key(block.device, block.kind, block.stream, size); };
  const auto found = cached_.lower_bound(key(block.size));
  if (found == cached_.end() || found->first > key(block.size + block.size / 8)) return nullptr;
  block.size = std::get<std::uint64_t>(found->first);
  void* memory = found->second;
  cached_.erase(found);
  return memory;
}

void* MemoryPool::reserve(const Block& block) {
  const bool host = block.kind == MemoryKind::host;
  const auto ask = [&] {
    const bool fits = host || block.size <= unreserved(block.device);
    return fits ? runtime().allocate(block.device, block.kind, block.size, kAlignment) : nullptr;
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

void MemoryPool::refuse(const Block& block) {
  ++block.figures->refusals;
  const auto limit = limit_of(block.device);
  const auto allocated = block.figures->allocated_bytes.current, active = block.figures->active_bytes.current;
  const auto reserved = block.figures->reserved_bytes.current;
  const bool host = block.kind == MemoryKind::host;
  const auto free = host ? runtime().free_bytes(block.device) : free_of(block.device);
  const std::string place = c10::str(host ? "the host of sycl:" : "sycl:", int{block.device});
  const std::string most = limit ? c10::str(", the limit is ", *limit) : "";
  C10_THROW_ERROR(OutOfMemoryError, c10::str("[device.memory] expected ", block.bytes, " bytes (rounded ", block.size,
                                             ") on ", place, ", got none: ", free, " are free, ", allocated,
                                             " allocated, ", reserved - active, " cached", most));
}

bool MemoryPool::free(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return false;
  Block block = std::move(found->second);
  used_.erase(found);
  block.figures->allocated_bytes.remove(static_cast<std::int64_t>(block.bytes));
  block.figures->allocated_blocks.remove(1);
  if (is_forked()) return true;
  try {
    retire(memory, std::move(block));
  } catch (...) {  // a deleter must not throw; a stream may use the block as long as it likes
  }
  return true;
}

void MemoryPool::retire(void* memory, Block block) {
  if (block.other_streams.empty()) return keep(memory, block);
  std::vector<OwnedEvent> uses;
  for (const c10::Stream& stream : block.other_streams) {
    uses.emplace_back(runtime().create_event());
    runtime().record(uses.back().get(), queue_of(stream));
  }
  freed_.push_back({memory, std::move(block), std::move(uses)});
}

void MemoryPool::DestroyEvent::operator()(Event event) const noexcept {
  if (!is_forked()) runtime().destroy_event(event);
}

void MemoryPool::keep(void* memory, const Block& block) {
  const Key key(block.device, block.kind, block.stream, block.size);
  cached_.emplace_hint(cached_.lower_bound(key), key, memory);  // first of its size: likely in a processor's cache
  block.figures->active_bytes.remove(static_cast<std::int64_t>(block.size));
  block.figures->active_blocks.remove(1);
}

void MemoryPool::keep_what_is_done() {
  if (freed_.empty()) return;
  std::erase_if(freed_, [&](Freed& freed) {
    const auto is_done = [](const OwnedEvent& use) { return runtime().is_done(use.get()); };
    if (!std::all_of(freed.uses.begin(), freed.uses.end(), is_done)) return false;
    keep(freed.memory, freed.block);
    return true;
  });
}

void MemoryPool::release_cached(Place place) {
  synchronize(place.first);  // a stream may still use what the host has freed
  keep_what_is_done();
  MemoryFigures& figures = figures_[place];
  std::erase_if(cached_, [&](const auto& cached) {
    const auto& [device, kind, stream, size] = cached.first;
    if (Place{device, kind == MemoryKind::host} != place) return false;
    runtime().free(device, cached.second);
    figures.reserved_bytes.remove(static_cast<std::int64_t>(size));
    figures.reserved_blocks.remove(1);
    return true;
  });
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

std::uint64_t MemoryPool::total_bytes(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return total_of(device);
}

std::uint64_t MemoryPool::free_bytes(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return free_of(device);
}

std::uint64_t MemoryPool::total_of(c10::DeviceIndex device) const {
  const std::uint64_t there = runtime().facts(device).total_bytes;
  return std::min(limit_of(device).value_or(there), there);
}

std::uint64_t MemoryPool::unreserved(c10::DeviceIndex device) {
  const std::uint64_t total = total_of(device);
  const auto reserved = figures_[{device, /*host=*/false}].reserved_bytes.current;
  return total - std::min<std::uint64_t>(total, reserved);
}

std::uint64_t MemoryPool::free_of(c10::DeviceIndex device) {
  return rounded_down(std::min(unreserved(device), runtime().free_bytes(device)));
}

}  // namespace octavo::sycl_device
