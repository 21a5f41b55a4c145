// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "octavo/kernels/managed.h"

namespace octavo::fake {

/// What happened to managed memory. The records of octavo_fake_managed_records() have these numbers.
enum class Movement : std::uint64_t { prefetch, evict, use, fault };

struct MovementRecord {
  Movement movement;
  const void* address;
  std::uint64_t bytes;  // 0 except for prefetch and evict
};

struct ManagedFigures {
  std::uint64_t resident_bytes, peak_resident_bytes;  // of pages that are on the device
  std::uint64_t faults;                               // commands that used a page that was not there
};

/// What happened to a device's managed memory, in the order in which commands ran. Thread-safe.
class Journal {
 public:
  static Journal& of(int device);  // never destroyed

  void add(Movement, const void* address, std::uint64_t bytes);
  void add_resident(std::int64_t bytes);
  ManagedFigures figures() const;
  std::vector<MovementRecord> records() const;
  /// Forgets the records and the faults, and sets the peak to what is resident.
  void reset();

 private:
  mutable std::mutex mutex_;
  ManagedFigures figures_ = {};
  std::vector<MovementRecord> records_;
};

/// The pages of an allocation that are on its device: none at first. Thread-safe.
class Pages {
 public:
  Pages(int device, const std::byte* start, std::uint64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void prefetch(const void* first, std::uint64_t bytes) { move(Movement::prefetch, first, bytes); }
  void evict(const void* first, std::uint64_t bytes) { move(Movement::evict, first, bytes); }

  /// Called before and after a command that uses memory from `first` on; how much it uses is not known. Where the page
  /// of `first` is not on the device, this counts as a fault and brings that page and all after it.
  void begin_use(const void* first);
  void end_use(const void* first);

 private:
  void move(Movement, const void* first, std::uint64_t bytes);
  void set_resident(std::uint64_t begin, std::uint64_t end, bool is_resident);  // pages by number
  std::uint64_t page_of(const void* address) const;
  bool bring(const void* first);

  Journal& journal_;
  const std::byte* const start_;
  std::mutex mutex_;
  std::vector<bool> resident_;
};

/// The managed memory that a command uses.
class ManagedUses {
 public:
  /// Adds memory from `first` on. `pages` is null for memory that is not managed.
  void add(Pages* pages, const void* first) {
    if (pages != nullptr) all_.emplace_back(pages, first);
  }
  template <class Body>
  void around(const Body& body) const {
    for (const auto& [pages, first] : all_) pages->begin_use(first);
    body();
    for (const auto& [pages, first] : all_) pages->end_use(first);
  }

 private:
  std::vector<std::pair<Pages*, const void*>> all_;
};

/// The managed memory of the fake devices. It has no budget, because the host holds it.
extern const ManagedMemory managed;

}  // namespace octavo::fake
