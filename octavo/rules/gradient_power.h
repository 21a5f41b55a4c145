// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"

/// How large a gradient is: the mean of its squares, summed chunk by chunk. A scale needs no more than every few of the
/// chunks, but what is zero must be told exactly from what is nearly zero.
namespace octavo::rules {

/// Elements whose squares are summed in one lane_sum.
inline constexpr std::uint64_t kPowerChunk = 256;

/// The least power of what is not zero: a normal number, which stays one where denormals are flushed to zero.
inline constexpr float kLeastPower = std::numeric_limits<float>::min();

/// The sum of a chunk's squares, 0 only where all of its elements are zeros. `seen`: the magnitude_bits of all of them,
/// or-ed.
OCTAVO_RULE float chunk_power(float sum_of_squares, std::uint32_t seen) {
  return sum_of_squares == 0 && seen != 0 ? kLeastPower : sum_of_squares;
}

}  // namespace octavo::rules
