// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo::sycl_device {

/// A figure: its value now, the highest value since reset_peak(), and what was added and removed since reset_sums().
struct Gauge {
  std::int64_t current = 0, peak = 0, added = 0, removed = 0;

  void add(std::int64_t amount) {
    current += amount;
    added += amount;
    peak = std::max(peak, current);
  }
  void remove(std::int64_t amount) {
    current -= amount;
    removed += amount;
  }
  void reset_peak() { peak = current; }
  void reset_sums() { added = removed = 0; }
};

/// The number of blocks, and their bytes together.
struct Amount {
  Gauge bytes, blocks;

  void add(std::uint64_t block_bytes) {
    bytes.add(static_cast<std::int64_t>(block_bytes));
    blocks.add(1);
  }
  void remove(std::uint64_t block_bytes) {
    bytes.remove(static_cast<std::int64_t>(block_bytes));
    blocks.remove(1);
  }
};

/// The figures of a memory. `allocated` is what tensors asked for, to the byte. `reserved` is what the driver gave:
/// allocated memory rounded up, and memory kept for the next tensor. `active` is what is in use, or was freed while a
/// stream may still use it.
struct MemoryFigures {
  Amount allocated, reserved, active;
  std::int64_t retries = 0, refusals = 0;  // allocations that needed the cache emptied first, and those refused

  void reset_peak() {
    for (Amount* amount : {&allocated, &reserved, &active}) {
      amount->bytes.reset_peak();
      amount->blocks.reset_peak();
    }
  }
  void reset_sums() {
    for (Amount* amount : {&allocated, &reserved, &active}) {
      amount->bytes.reset_sums();
      amount->blocks.reset_sums();
    }
    retries = refusals = 0;
  }
};

}  // namespace octavo::sycl_device
