// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "octavo/export.h"

namespace octavo {

/// Memory that processes of one host share. It is a file without a name in any file system (memfd), which ends with the
/// last process that has it mapped, however that process ends. Growing moves nothing: address space for all that the
/// file may become is mapped at once, and grow() makes memory of it. Thread-safe, except grow(), which is for one
/// thread of the process that made the file.
class OCTAVO_API MemoryFile {
 public:
  /// What another process finds the file by: where it is, and what is written there.
  struct Name {
    std::int64_t process, descriptor;
    std::uint64_t capacity;                // bytes of address space
    std::array<std::uint64_t, 2> token{};  // unguessable
  };
  /// The bytes at its beginning that the file uses itself.
  static constexpr std::uint64_t kHeader = 64;

  /// Makes a new file of zeros. Throws Error unsupported where the system has no such memory.
  static std::shared_ptr<MemoryFile> create();
  /// Opens the file of a process of this host, to read and to write. Returns null where `name` is of another host,
  /// container or user. In the process that made the file it returns the same object, so that what threads do to it is
  /// known to be at one address.
  static std::shared_ptr<MemoryFile> open(const Name& name);

  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const Name& name() const { return name_; }
  std::uint8_t* data() const { return data_; }
  /// Returns how many bytes are memory. It is known only in the process that made the file.
  std::uint64_t size() const { return size_; }
  /// Makes memory of at least `bytes` bytes of the file. Throws Error out_of_memory.
  void grow(std::uint64_t bytes);

 private:
  MemoryFile(Name name, int descriptor, std::uint8_t* data) : name_(name), descriptor_(descriptor), data_(data) {}

  Name name_;
  int descriptor_;  // -1: the file is of another process; its mapping needs no descriptor
  std::uint8_t* data_;
  std::uint64_t size_ = 0;
};

}  // namespace octavo
