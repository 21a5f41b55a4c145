// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "octavo/device/sycl/block.h"

namespace octavo::sycl_device {

/// Blocks that were freed while other streams may still use them. The owner locks.
class PendingBlocks {
 public:
  /// Until the other streams have done what they were given so far.
  void add(void* memory, Block);
  /// Hands over the blocks whose streams are done.
  void take_done(const std::function<void(void* memory, const Block&)>& take);

 private:
  struct DestroyEvent {
    void operator()(Event event) const noexcept;
  };
  using OwnedEvent = std::unique_ptr<void, DestroyEvent>;
  struct Pending {
    void* memory;
    Block block;
    std::vector<OwnedEvent> uses;
  };
  std::list<Pending> blocks_;
};

}  // namespace octavo::sycl_device
