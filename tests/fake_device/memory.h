// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "octavo/kernels/runtime.h"
#include "tests/fake_device/managed.h"

namespace octavo::fake {

/// Memory of a fake device. Private memory (MemoryKind::device) has two addresses: at the caller's every access of the
/// host ends in a segmentation fault, and at the other one commands find the bytes.
class Allocation {
 public:
  /// Allocates at a multiple of `alignment`, with a page behind the memory that nobody may access. Throws
  /// std::bad_alloc where the system has no room.
  Allocation(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment, bool is_managed);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  int device() const { return device_; }
  MemoryKind kind() const { return kind_; }
  std::uint64_t bytes() const { return bytes_; }
  std::byte* address() const { return address_; }
  /// Returns the address at which commands find what the caller has at `address`.
  std::byte* inside(const void* address) const;
  bool holds(const void* address, std::uint64_t bytes) const;
  /// The pages of managed memory; null for other memory.
  Pages* pages() const { return pages_.get(); }
  /// Whether it counts towards its device's budget.
  bool is_counted() const { return kind_ != MemoryKind::host && pages_ == nullptr; }

 private:
  std::byte* map(int protection);

  const int device_;
  const MemoryKind kind_;
  const std::uint64_t bytes_, mapped_bytes_, alignment_;
  std::vector<void*> mappings_;
  std::byte* address_ = nullptr;
  std::byte* inside_ = nullptr;
  std::unique_ptr<Pages> pages_;
};

/// All memory of the fake devices. Each device has a budget for its private and its shared memory. Thread-safe.
class Memory {
 public:
  static Memory& all();  // never destroyed

  /// Returns null beyond the budget, or where the system has no room.
  void* allocate(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
  /// Allocates whole pages, which do not count towards the budget. Returns null where the system has no room.
  void* allocate_managed(int device, std::uint64_t bytes);
  /// Throws Error internal where a command that was enqueued still uses the memory, or where it is not the device's.
  void free(int device, void* memory);
  std::uint64_t free_bytes(int device) const;

  /// Returns the allocation that a command of the device uses from `address` on. The command must hold it until it has
  /// run. Returns null for ordinary memory. Throws Error invalid_argument where the memory is another device's, or ends
  /// before `bytes`.
  std::shared_ptr<const Allocation> used_by(int device, const void* address, std::uint64_t bytes) const;

 private:
  void* add(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment, bool is_managed);

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<Allocation>> live_;  // by the caller's address
  std::map<int, std::uint64_t> used_bytes_;                       // by device
};

std::uint64_t budget_bytes();  // of each device: OCTAVO_FAKE_MEMORY_BYTES, or 2 GiB

}  // namespace octavo::fake
