// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "octavo/device/sycl/memory_blocks.h"
#include "octavo/device/sycl/memory_figures.h"

namespace octavo::sycl_device {

/// Memory of the devices and page-locked memory of the host, kept for reuse. Thread-safe.
///
/// A block belongs to the stream that was current when it was allocated. It is reused for later allocations of the same
/// stream, device and kind and of about its size (BlockCache), because their work runs after what was done with it.
/// Other streams that use it must be named by `use_on`; the block is then kept back until they are done. After a fork
/// the child forgets blocks that it frees: they are the parent's.
class MemoryPool {
 public:
  static constexpr c10::StreamId kNoStream = -1;

  static MemoryPool& instance();  // exists as long as the process

  /// Allocates uninitialized memory at a multiple of 64 bytes. `bytes` is above 0. `stream` is the stream whose work
  /// uses the memory, or kNoStream for memory that the host uses at any time; then `use_on` names all streams that use
  /// it. Throws torch's OutOfMemoryError, with the figures, where the driver or the limit has no room even after the
  /// cache was emptied.
  void* allocate(c10::DeviceIndex, MemoryKind, std::uint64_t bytes, c10::StreamId stream);
  /// Frees memory of this pool and returns true; for other memory does nothing and returns false. Where the driver
  /// fails to say when the other streams are done, the block stays active for good.
  bool free(void* memory) noexcept;
  /// Returns the kind of the block in which the address lies.
  std::optional<MemoryKind> kind_of(const void* memory);
  std::optional<c10::DeviceIndex> device_of(const void* memory);
  /// Keeps the block in which the address lies from being reused before the stream is done with what it was given.
  void use_on(void* memory, c10::Stream);

  /// Gives back to the driver what is not allocated: memory of the device, or with `host` its page-locked memory of the
  /// host.
  void empty_cache(c10::DeviceIndex, bool host);

  /// The figures of a device's own and shared memory, or with `host` of its page-locked memory of the host.
  MemoryFigures figures(c10::DeviceIndex, bool host);
  void reset_peak(c10::DeviceIndex, bool host);
  void reset_sums(c10::DeviceIndex, bool host);

  /// The most bytes that may be reserved on a device; nullopt: what the device has. At the start it is
  /// OCTAVO_SYCL_MEMORY_BYTES.
  void set_limit(c10::DeviceIndex, std::optional<std::uint64_t> bytes);
  std::optional<std::uint64_t> limit(c10::DeviceIndex);
  /// The most bytes that can be reserved: the limit, and no more than the device has.
  std::uint64_t total_bytes(c10::DeviceIndex);
  /// The bytes that can still be reserved, within the limit and what the driver has left. One block of that many can be
  /// allocated.
  std::uint64_t free_bytes(c10::DeviceIndex);
  /// The bytes that can be reserved once the cache is emptied, as an allocation does before it is refused.
  std::uint64_t available_bytes(c10::DeviceIndex);

 private:
  MemoryPool();
  // These functions are called by who holds the lock.
  Block* block_with(const void* address);
  std::optional<std::uint64_t> limit_of(c10::DeviceIndex) const;
  std::uint64_t total_of(c10::DeviceIndex) const;
  std::uint64_t unreserved(c10::DeviceIndex);
  std::uint64_t free_of(c10::DeviceIndex);
  void* reserve(const Block&);
  void keep(void* memory, const Block&);
  void keep_what_is_done();
  void release_cached(Place);
  [[noreturn]] void refuse(const Block&);

  std::mutex mutex_;
  std::map<const void*, Block> used_;
  BlockCache cached_;
  PendingBlocks pending_;
  std::map<Place, MemoryFigures> figures_;
  const std::optional<std::uint64_t> first_limit_;                       // the limit of every device at the start
  std::map<c10::DeviceIndex, std::optional<std::uint64_t>> set_limits_;  // what set_limit has set
};

}  // namespace octavo::sycl_device
