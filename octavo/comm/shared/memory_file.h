// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "octavo/export.h"

namespace octavo {

/// Memory that processes of one host share: a file without a name in any file system (memfd), which ends with the last
/// process that has it mapped, however that ends. Growing moves nothing: address space for all that it may become is
/// mapped at once, and becomes memory by grow(). Thread-safe but for grow(), which is for one thread of its maker.
class OCTAVO_API MemoryFile {
 public:
  /// By which another process finds it: where it is, and what is written there.
  struct Name {
    std::int64_t process, descriptor;
    std::uint64_t capacity;                // bytes of address space
    std::array<std::uint64_t, 2> token{};  // unguessable
  };
  /// Bytes at its beginning that are the file's own.
  static constexpr std::uint64_t kHeader = 64;

  /// A new one, of zeros. Throws Error unsupported where the system has no such memory.
  static std::shared_ptr<MemoryFile> create();
  /// That of a process of this host, to read and to write; null where `name` is of another host, container or user. In
  /// the process that made it the same object, so that what threads do to it is known to be at one address.
  static std::shared_ptr<MemoryFile> open(const Name& name);

  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const Name& name() const { return name_; }
  std::uint8_t* data() const { return data_; }
  /// Bytes that are memory: of the process that made it.
  std::uint64_t size() const { return size_; }
  /// At least `bytes` of it become memory. Throws Error out_of_memory.
  void grow(std::uint64_t bytes);

 private:
  MemoryFile(Name name, int descriptor, std::uint8_t* data) : name_(name), descriptor_(descriptor), data_(data) {}

  Name name_;
  int descriptor_;  // -1: of another process, whose mapping needs none
  std::uint8_t* data_;
  std::uint64_t size_ = 0;
};

}  // namespace octavo
