// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What compiled device code and the emulated driver know of each other. Device code is compiled by nvrtc.cpp with
/// device_code.h before it; the driver loads it and sets its `octavo_emulated_lanes`.
namespace octavo::cuda_emulator {

struct Dimensions {
  unsigned x, y, z;
};

/// The thread of a launch that runs now, as device code sees it.
struct Thread {
  Dimensions index, block, block_size, grid_size;
};

/// A place where all lanes of a warp hand in a value, and read those of all. The number tells one primitive from
/// another: lanes that meet in different ones are an error.
enum class Primitive : unsigned { wait, ballot, any, shuffle, shuffle_down, shuffle_xor, reduce_or, reduce_max };

struct Lanes {
  const Thread& (*thread)();
  /// Returns the values of all 32 lanes, which stay until the next but one call. `mask` must name all lanes.
  const std::uint64_t* (*meet)(Primitive primitive, unsigned mask, std::uint64_t own);
};

}  // namespace octavo::cuda_emulator
