// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

/// Owns zeroed, aligned pages of memory, locked in RAM; the destructor unlocks and unmaps them. Not thread-safe.
class LockedPages {
 public:
  /// Maps and locks whole pages for `bytes` bytes at a multiple of `alignment_bytes`, a power of two. Throws Error
  /// out_of_memory, with the system's limit, where the system refuses.
  LockedPages(std::size_t bytes, std::size_t alignment_bytes);
  ~LockedPages();
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;

  void* data() const { return data_; }
  /// The size, in whole pages.
  std::size_t bytes() const { return bytes_; }
  void unlock();

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace octavo
