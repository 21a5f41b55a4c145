// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// A value is sent as its sign and one of two magnitudes, 0.58 or 2.2 times the block's mean magnitude, whichever is
/// nearer. These factors lie between those that lose least for a normal distribution (0.57, 1.89) and for a Laplace
/// distribution (0.59, 2.59; Lloyd 1982).
struct SignOfTwo {
  static constexpr unsigned kBits = 2;  // is positive, has the greater magnitude
  static constexpr bool kHasScale = true, kLeavesError = true, kKeepsMagnitude = true, kDithers = false;
  static constexpr std::uint64_t kBlock = 256;
  static constexpr std::uint32_t kGreatest = 1;
  using Statistic = MeanMagnitude;
  struct Scale {
    float sent;
  };
  static constexpr float kGreater = 2.2F, kSmaller = 0.58F / kGreater,
                         kBetween = 1.39F / kGreater;  // `sent` is the greater one

  OCTAVO_RULE static Scale scale(float mean) { return {kGreater * mean}; }
  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale, auto) {
    return positive_bit(value) << 1U | (magnitude(value) > kBetween * scale.sent ? 1U : 0U);
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) {
    return signed_by((code & 1U) != 0 ? sent : kSmaller * sent, code >> 1U);
  }
};

}  // namespace octavo::rules
