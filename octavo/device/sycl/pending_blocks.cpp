// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/pending_blocks.h"

#include <algorithm>

#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

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
