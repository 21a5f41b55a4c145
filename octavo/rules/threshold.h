// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// Which values are large (after Strom 2015): those whose magnitude is above a threshold. The threshold is a factor
/// times the root of the mean square of all values that are encoded together.
namespace octavo::rules {

/// The number of elements of which the large ones are counted together.
inline constexpr std::uint64_t kCountChunk = 1U << 14;

/// Returns the least magnitude_bits that is above a threshold. Above a threshold that is not finite there are only
/// infinities and NaNs.
OCTAVO_RULE std::uint32_t least_above(float threshold) {
  return is_finite(threshold) ? magnitude_bits(threshold) + 1 : kInfinityBits;
}

}  // namespace octavo::rules
