// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "octavo/export.h"
#include "octavo/kernels/round_up.h"
#include "octavo/kernels/runtime.h"

namespace octavo {

/// Managed memory: the host and a device's kernels use it at one address, and its pages lie where they were last asked
/// for, so that there can be more of it than the device has. This is what a back end provides of it, as plain
/// functions; device/arena.h owns it, counts it and limits it.
///
/// A Queue names the device. `{}` is the calling thread, for which a call has run when it returns. On other queues
/// `prefetch` and `fill` run in the queue's order and are not waited for. Thread-safe. All functions throw Error
/// internal for a failure of the driver, with the driver's words.
struct ManagedMemory {
  /// Returns the size of a page: allocations start at a multiple of it and are rounded up to it.
  std::uint64_t (*page_bytes)();
  /// Whether memory is zero when it is allocated, although no page of it has been touched.
  bool is_zeroed;

  /// Allocates memory; `bytes` is above 0. Returns null where there is none left.
  void* (*allocate)(Queue, std::uint64_t bytes);
  /// Allocates memory in a file without a name in `directory`, for which room on the disk is taken at once: there can
  /// then be more of it than the machine has memory. Returns null where the disk is full. Throws, with the
  /// system's words, Error invalid_argument where no file can be made there, Error out_of_memory where there are too
  /// many files already. A forked process shares the memory. The function pointer is null where the back end has no
  /// files.
  void* (*allocate_in_file)(Queue, const std::string& directory, std::uint64_t bytes);
  /// Frees memory; `memory` and `bytes` are those of its allocation. No queue may use it any more.
  void (*free)(Queue, void* memory, std::uint64_t bytes);

  /// Moves a part of an allocation to the device or (evicts) away from it: from a device to the host, on the host
  /// itself to the disk behind it. This is advice: the contents stay, and whoever uses a page still gets it, only
  /// later.
  void (*prefetch)(Queue, void* memory, std::uint64_t bytes, bool to_device);
  /// Sets `count` elements to the lowest bits of the pattern. Their width is 1 or 4 bytes, and `memory` is at a
  /// multiple of it.
  void (*fill)(Queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count);
};

/// Returns `bytes` rounded up to whole pages; the result is less than `bytes` where there are no such addresses.
inline std::uint64_t whole_pages(std::uint64_t bytes, std::uint64_t page_bytes) { return round_up(bytes, page_bytes); }

/// Ordinary memory of the host as managed memory, for the calling thread: anonymous, or in files.
extern OCTAVO_API const ManagedMemory host_managed;

}  // namespace octavo
