// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// Ternary: -s, 0 or s, whichever is nearest, where s is 7/4 of the block's mean magnitude. This factor lies between
/// those that lose least for a normal distribution (1.53) and for a Laplace distribution (2). Ternary is for error
/// feedback; int2 with `:stochastic` rounds without bias (TernGrad, Wen et al. 2017).
struct Ternary {
  static constexpr unsigned kBits = 2;  // is positive, is not zero
  static constexpr bool kHasScale = true, kLeavesError = true, kKeepsMagnitude = true, kDithers = false;
  static constexpr std::uint64_t kBlock = 256;
  static constexpr std::uint32_t kGreatest = 1;
  using Statistic = MeanMagnitude;
  struct Scale {
    float sent;
  };

  OCTAVO_RULE static Scale scale(float mean) { return {1.75F * mean}; }
  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale, auto) {
    return positive_bit(value) << 1U | (magnitude(value) > 0.5F * scale.sent ? 1U : 0U);
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) {
    const float nothing = 0.0F * sent;
    return (code & 1U) != 0 ? signed_by(sent, code >> 1U) : nothing;
  }
};

}  // namespace octavo::rules
