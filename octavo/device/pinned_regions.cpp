// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/pinned_regions.h"

#include "octavo/kernels/fork.h"

namespace octavo {

PinnedRegions::PinnedRegions() {
  hold_over_forks<[]() -> std::mutex& { return all().mutex_; }>();
}

PinnedRegions& PinnedRegions::all() {
  static auto* const regions = new PinnedRegions;
  return *regions;
}

void PinnedRegions::add(void* context, const PinnedRegion& region) {
  const std::lock_guard lock(mutex_);
  contexts_[region.first] = context;
  regions_[context] = region;
  locked_bytes_ += region.locked_bytes;
}

std::optional<PinnedRegion> PinnedRegions::remove(void* context) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.extract(context);
  if (found.empty()) return std::nullopt;
  contexts_.erase(found.mapped().first);
  locked_bytes_ -= found.mapped().locked_bytes;
  return found.mapped();
}

std::optional<std::pair<void*, PinnedRegion>> PinnedRegions::find(std::uintptr_t first, std::uintptr_t end) const {
  const std::lock_guard lock(mutex_);
  auto next = contexts_.upper_bound(first);
  if (next == contexts_.begin()) return std::nullopt;
  void* const context = std::prev(next)->second;
  const PinnedRegion& region = regions_.at(context);
  if (end > region.end || first >= region.end) return std::nullopt;
  return std::pair(context, region);
}

std::size_t PinnedRegions::locked_bytes() const {
  const std::lock_guard lock(mutex_);
  return locked_bytes_;
}

}  // namespace octavo
