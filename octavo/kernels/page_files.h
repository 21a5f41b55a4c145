// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace octavo {

/// Memory in files that have no name. There is one file per directory, because a process may open only few; a file is
/// closed with its last mapping. Thread-safe.
class PageFiles {
 public:
  static PageFiles& all();  // exists as long as the process

  /// Maps `bytes` bytes, which are whole pages and zero. Returns null where the disk is full; throws Error
  /// invalid_argument where no file can be made in the directory.
  void* map(const std::string& directory, std::uint64_t bytes);
  /// Unmaps `memory`; returns whether it was mapped here. In a forked process this leaves the contents as they are for
  /// the other process.
  bool unmap(void* memory);
  /// Whether the address is inside a mapping that was made here.
  bool holds(const void* address);
  /// Starts to write to the disk what has changed in the range, where the range is in a mapping that was made here. May
  /// wait until the disk takes it.
  void begin_write(const void* memory, std::uint64_t bytes);

 private:
  class File;
  struct Mapping {
    std::shared_ptr<File> file;
    std::uint64_t offset, bytes;
  };
  struct Place {
    std::shared_ptr<File> file;  // null for an address outside of all mappings
    std::uint64_t offset;
  };
  Place find(const void* address);

  PageFiles();

  std::mutex mutex_;  // held during forks (fork.h)
  std::map<std::string, std::weak_ptr<File>> files_;
  std::map<const std::byte*, Mapping> mappings_;  // by the address at which they start
};

}  // namespace octavo
