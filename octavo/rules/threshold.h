// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// Which values are large (after Strom 2015): those whose magnitude is above a threshold, a factor times the root of
/// the mean square of what is encoded together.
namespace octavo::rules {

/// Elements of which the large ones are counted together.
inline constexpr std::uint64_t kCountChunk = 1U << 14;

/// The least magnitude_bits of what is above a threshold. One that is not finite leaves what is not.
OCTAVO_RULE std::uint32_t least_above(float threshold) {
  return is_finite(threshold) ? magnitude_bits(threshold) + 1 : kInfinityBits;
}

}  // namespace octavo::rules
