// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "octavo/device/locked_pages.h"

namespace octavo {

/// One live region of page-locked memory.
struct PinnedRegion {
  std::uintptr_t first = 0, end = 0;
  std::size_t locked_bytes = 0;
  LockedPages* pages = nullptr;             // of memory that we have locked; otherwise null
  c10::DeleterFnPtr driver_free = nullptr;  // of memory from a device's allocator; otherwise null
};

/// All live regions, by address and by the context of the storage that owns each. Thread-safe.
class PinnedRegions {
 public:
  /// The only instance. It is never destroyed, because tensors may outlive every static object.
  static PinnedRegions& all();

  void add(void* context, const PinnedRegion& region);
  /// Forgets the region of the context and returns it; returns none if it was forgotten before.
  std::optional<PinnedRegion> remove(void* context);
  /// Returns the region that contains all of [first, end), with its context.
  std::optional<std::pair<void*, PinnedRegion>> find(std::uintptr_t first, std::uintptr_t end) const;
  std::size_t locked_bytes() const;

 private:
  PinnedRegions();

  mutable std::mutex mutex_;  // held over forks
  std::map<std::uintptr_t, void*> contexts_;
  std::unordered_map<void*, PinnedRegion> regions_;
  std::size_t locked_bytes_ = 0;
};

}  // namespace octavo
