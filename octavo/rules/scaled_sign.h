// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/compensated_sum.h"
#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"

/// Scaled sign: a block is sent as its mean magnitude and one sign bit per element (EF-SignSGD, Karimireddy et al.
/// 2019).
///
/// The magnitudes of a chunk are added by lane_sum, the sums of the chunks by a CompensatedSum, in order.
namespace octavo::rules {

inline constexpr std::uint64_t kSumChunk = 4096;

/// The scale of a block: 0 for a block of zeros, NaN where any element was NaN or infinite (or the sum overflows).
OCTAVO_RULE float sign_scale(float sum_of_magnitudes, std::uint64_t count) {
  const float mean = sum_of_magnitudes / static_cast<float>(count);
  return is_finite(mean) ? mean : from_bits(kQuietNaNBits);
}

/// What the receiver reads for an element whose sent value had the sign of `value`.
OCTAVO_RULE float sign_decoded(float scale, float value) { return with_sign_of(scale, value); }

}  // namespace octavo::rules
