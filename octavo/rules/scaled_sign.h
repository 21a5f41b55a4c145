// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// Scaled sign: a block is sent as its mean magnitude and one sign bit per element (EF-SignSGD, Karimireddy et al.
/// 2019). The scale is 0 for a block of zeros.
struct ScaledSign {
  static constexpr unsigned kBits = 1;
  static constexpr bool kHasScale = true, kLeavesError = true, kKeepsMagnitude = true, kDithers = false;
  static constexpr std::uint64_t kBlock = 256;
  static constexpr std::uint32_t kGreatest = 0;
  using Statistic = MeanMagnitude;
  struct Scale {
    float sent;
  };

  OCTAVO_RULE static Scale scale(float mean) { return {mean}; }
  OCTAVO_RULE static std::uint32_t code(float value, const Scale&, auto) { return positive_bit(value); }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) { return signed_by(sent, code); }
};

}  // namespace octavo::rules
