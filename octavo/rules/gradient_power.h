// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"

/// How large a gradient is: the mean of its squares, summed chunk by chunk. Its scale can be estimated from one chunk
/// in several, but a gradient of zeros must be told exactly from one that is nearly zero.
namespace octavo::rules {

/// The number of elements whose squares are summed in one lane_sum.
inline constexpr std::uint64_t kPowerChunk = 256;

/// The least power of values that are not all zero. It is a normal number, so that it is not lost where denormals are
/// flushed to zero.
inline constexpr float kLeastPower = std::numeric_limits<float>::min();

/// Returns the sum of a chunk's squares, which is 0 only where all of its elements are zeros. `seen`: the bitwise or of
/// the magnitude_bits of all its elements.
OCTAVO_RULE float chunk_power(float sum_of_squares, std::uint32_t seen) {
  return sum_of_squares == 0 && seen != 0 ? kLeastPower : sum_of_squares;
}

}  // namespace octavo::rules
