// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_blocks.h"

#include <algorithm>
#include <bit>

#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/round_up.h"

namespace octavo::sycl_device {

namespace {

constexpr std::uint64_t kSmallStep = 512, kLarge = 1 << 20, kLargestStep = 2 << 20;

std::uint64_t step_of(std::uint64_t bytes) {
  return bytes <= kLarge ? kSmallStep : std::min(std::bit_floor(bytes) / 8, kLargestStep);
}

}  // namespace

// ---- sizes

std::uint64_t rounded_up(std::uint64_t bytes) { return round_up(bytes, step_of(bytes)); }

std::uint64_t rounded_down(std::uint64_t bytes) { return bytes / step_of(bytes) * step_of(bytes); }

// ---- kept for reuse

void* BlockCache::take(Block& block) {
  const auto key = [&](std::uint64_t size) { return Key(block.device, block.kind, block.stream, size); };
  const auto found = blocks_.lower_bound(key(block.size));
  if (found == blocks_.end() || found->first > key(block.size + block.size / 8)) return nullptr;
  block.size = std::get<std::uint64_t>(found->first);
  void* memory = found->second;
  blocks_.erase(found);
  return memory;
}

void BlockCache::keep(void* memory, const Block& block) {
  const Key key(block.device, block.kind, block.stream, block.size);
  blocks_.emplace_hint(blocks_.lower_bound(key), key, memory);  // first of its size: likely in a processor's cache
}

void BlockCache::clear(Place place, const std::function<void(void* memory, std::uint64_t size)>& release) {
  std::erase_if(blocks_, [&](const auto& block) {
    const auto& [device, kind, stream, size] = block.first;
    if (Place{device, kind == MemoryKind::host} != place) return false;
    release(block.second, size);
    return true;
  });
}

// ---- still used by other streams

void PendingBlocks::DestroyEvent::operator()(Event event) const noexcept {
  if (!is_forked()) runtime().destroy_event(event);
}

void PendingBlocks::add(void* memory, Block block) {
  std::vector<OwnedEvent> uses;
  for (const c10::Stream& stream : block.other_streams) {
    uses.emplace_back(runtime().create_event());
    runtime().record(uses.back().get(), queue_of(stream));
  }
  blocks_.push_back({memory, std::move(block), std::move(uses)});
}

void PendingBlocks::take_done(const std::function<void(void* memory, const Block&)>& take) {
  const auto is_done = [](const OwnedEvent& use) { return runtime().is_done(use.get()); };
  for (auto pending = blocks_.begin(); pending != blocks_.end();) {
    if (!std::all_of(pending->uses.begin(), pending->uses.end(), is_done)) {
      ++pending;
      continue;
    }
    const Pending done = std::move(*pending);
    pending = blocks_.erase(pending);  // before it is handed over: what throws after that must not give it twice
    take(done.memory, done.block);
  }
}

}  // namespace octavo::sycl_device
