// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "octavo/comm/shared/memory_file.h"
#include "octavo/export.h"

namespace octavo {

/// Tensors in a file of memory, from some place on, for the process that made the file. Freed memory is kept for later
/// tensors until the last of them and this object are destroyed. Thread-safe.
class OCTAVO_API SharedBlocks : public std::enable_shared_from_this<SharedBlocks> {
 public:
  SharedBlocks(std::shared_ptr<MemoryFile> file, std::uint64_t first);

  /// Returns uint8[bytes], not initialized. Throws Error out_of_memory.
  at::Tensor allocate(std::uint64_t bytes);
  /// Whether all of a tensor's memory is in the file.
  bool contains(const at::Tensor& tensor) const;
  /// Returns the offset of an address in the file.
  std::uint64_t offset_of(const void* address) const;
  const MemoryFile& file() const { return *file_; }

 private:
  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t offset, std::uint64_t bytes);

  const std::shared_ptr<MemoryFile> file_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_;  // free blocks, bytes by offset; no two of them touch
  std::uint64_t end_;                            // the end of all that was ever taken
};

}  // namespace octavo
