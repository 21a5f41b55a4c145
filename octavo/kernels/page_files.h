// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace octavo {

/// Memory in files that have no name: one file for each directory, since a process may open few, closed with its last
/// mapping. Thread-safe.
class PageFiles {
 public:
  static PageFiles& all();  // lives as long as the process

  /// `bytes` in whole pages, zeroed. Null where the disk is full; throws Error invalid_argument where no file can be
  /// made in the directory.
  void* map(const std::string& directory, std::uint64_t bytes);
  /// Whether `memory` was mapped here. In a process that was forked it is unmapped, and stays what it is for the other.
  bool unmap(void* memory);
  /// Whether the address is inside of a mapping from here.
  bool holds(const void* address);
  /// Starts to write what has changed in the range to the disk, where it is of a mapping from here. May wait for
  /// the disk to take it.
  void begin_write(const void* memory, std::uint64_t bytes);

 private:
  class File;
  struct Mapping {
    std::shared_ptr<File> file;
    std::uint64_t offset, bytes;
  };
  struct Place {
    std::shared_ptr<File> file;  // null for an address that is nowhere here
    std::uint64_t offset;
  };
  Place find(const void* address);

  PageFiles();

  std::mutex mutex_;  // held over forks
  std::map<std::string, std::weak_ptr<File>> files_;
  std::map<const std::byte*, Mapping> mappings_;  // by their start
};

}  // namespace octavo
