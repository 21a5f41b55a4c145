// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/block_cache.h"

namespace octavo::sycl_device {

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

}  // namespace octavo::sycl_device
