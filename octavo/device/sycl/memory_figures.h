// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo::sycl_device {

/// A figure: now, the most since reset_peak(), and the sums since reset_sums().
struct Gauge {
  std::int64_t current = 0, peak = 0, added = 0, removed = 0;
  void add(std::int64_t amount);
  void remove(std::int64_t amount);
};

/// How many blocks, and their bytes together.
struct Amount {
  Gauge bytes, blocks;
  void add(std::uint64_t block_bytes);
  void remove(std::uint64_t block_bytes);
};

/// What tensors asked for is `allocated`, to the byte; what the driver gave is `reserved`: allocated memory rounded up,
/// and memory kept for the next tensor. `active` is what is in use, or was freed while a stream may still use it.
struct MemoryFigures {
  Amount allocated, reserved, active;
  std::int64_t retries = 0, refusals = 0;  // of allocations: after the cache was emptied; for good

  void reset_peak();
  void reset_sums();
};

}  // namespace octavo::sycl_device
