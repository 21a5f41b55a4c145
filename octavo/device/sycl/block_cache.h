// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "octavo/device/sycl/block.h"

namespace octavo::sycl_device {

/// Blocks that nobody uses, for later allocations of the same stream, device and kind. The owner locks.
class BlockCache {
 public:
  /// Memory of the block's size or at most an eighth more, which its size then is; null where there is none.
  void* take(Block&);
  void keep(void* memory, const Block&);
  /// Forgets each block of a place once `release` has returned.
  void clear(Place, const std::function<void(void* memory, std::uint64_t size)>& release);

 private:
  using Key = std::tuple<c10::DeviceIndex, MemoryKind, c10::StreamId, std::uint64_t>;  // with the size
  std::multimap<Key, void*> blocks_;
};

}  // namespace octavo::sycl_device
