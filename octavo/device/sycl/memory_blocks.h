// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "octavo/kernels/runtime.h"

/// The blocks of the MemoryPool: their sizes, those kept for reuse, and those that streams still use. The pool holds
/// its lock when it calls these.
namespace octavo::sycl_device {

/// What figures are kept for: a device and, where the second is true, its page-locked memory of the host.
using Place = std::pair<c10::DeviceIndex, bool>;

/// A piece of memory from the driver, used as a whole.
struct Block {
  c10::DeviceIndex device;
  MemoryKind kind;
  c10::StreamId stream;                    // the stream whose work uses it
  std::uint64_t bytes, size;               // asked for, rounded up
  std::vector<c10::Stream> other_streams;  // those that use it too
  Place place() const { return {device, kind == MemoryKind::host}; }
};

/// Returns the size of a block for that many bytes. Up to 1 MiB it is the next multiple of 512. Above, it is the next
/// multiple of an eighth of the power of two below, or of 2 MiB where that is less.
std::uint64_t rounded_up(std::uint64_t bytes);
/// Returns the largest size of a block that is at most `bytes`.
std::uint64_t rounded_down(std::uint64_t bytes);

/// Blocks that nobody uses, for later allocations of the same stream, device and kind.
class BlockCache {
 public:
  /// Returns memory of the block's size or of at most an eighth more, and makes that the block's size. Returns null
  /// where there is none.
  void* take(Block&);
  void keep(void* memory, const Block&);
  /// Forgets each block of a place once `release` has returned.
  void clear(Place, const std::function<void(void* memory, std::uint64_t size)>& release);

 private:
  using Key = std::tuple<c10::DeviceIndex, MemoryKind, c10::StreamId, std::uint64_t>;  // the last is the size
  std::multimap<Key, void*> blocks_;
};

/// Blocks that were freed while other streams may still use them.
class PendingBlocks {
 public:
  /// Keeps the block until the other streams have done what they were given so far.
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
