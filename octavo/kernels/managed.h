// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

namespace octavo {

/// Managed memory: the host and a device's kernels use it at one address, and its pages lie where they were last asked
/// for, so that there can be more of it than the device has. What a back end provides of it, as plain functions; who
/// owns it, counts it and limits it is device/arena.h.
///
/// A Queue says which device; `{}` is the calling thread, for which a call has run when it returns. On other queues
/// `prefetch` and `fill` run in the queue's order and are not waited for. Thread-safe. All functions throw Error
/// internal for a failure of the driver, with its words.
struct ManagedMemory {
  /// What allocations start at a multiple of and are rounded up to.
  std::uint64_t (*page_bytes)();
  /// Whether memory is zero when it is allocated, without a page of it having been touched.
  bool is_zeroed;

  /// `bytes` above 0. Null where there is none left.
  void* (*allocate)(Queue, std::uint64_t bytes);
  /// The same in a file without a name in `directory`, for which it has room: then there can be more of it than the
  /// machine has memory. Null where the disk is full; throws Error invalid_argument, with the system's words, where no
  /// file can be made there. Null where the back end has no files. A process that is forked shares the memory.
  void* (*allocate_in_file)(Queue, const std::string& directory, std::uint64_t bytes);
  /// `memory` and `bytes` as allocated. No queue may use it any more.
  void (*free)(Queue, void* memory, std::uint64_t bytes);

  /// Moves a part of an allocation to the device, or (evicts) away from it to the host, on the host itself to the disk
  /// behind it. Advice: the contents stay, and whoever uses a page gets it, later.
  void (*prefetch)(Queue, void* memory, std::uint64_t bytes, bool to_device);
  /// Sets `count` elements, at a multiple of their width of 1 or 4 bytes, to the lowest bits of the pattern.
  void (*fill)(Queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count);
};

/// `bytes` rounded up; less than them where there are no such addresses.
inline std::uint64_t whole_pages(std::uint64_t bytes, std::uint64_t page_bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/// Ordinary memory of the host, for the calling thread: anonymous, or in files.
extern OCTAVO_API const ManagedMemory host_managed;

}  // namespace octavo
