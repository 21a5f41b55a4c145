// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// Symmetric integers: a block is sent as scale = max|v| / L and one code from -L to L per element, where L =
/// 2^(kBits-1) - 1. Codes are rounded to nearest even or, with a dither, stochastically. A code is stored as code +
/// 2^(kBits-1).
template <unsigned kWidth, std::uint64_t kDefaultBlock>
struct SymmetricInt {
  static constexpr unsigned kBits = kWidth;
  static constexpr bool kHasScale = true, kLeavesError = true, kKeepsMagnitude = true, kDithers = true;
  static constexpr std::uint64_t kBlock = kDefaultBlock;
  static constexpr std::uint32_t kGreatest = 0;  // -L - 1, which no encoder sends
  using Statistic = LargestMagnitude;
  struct Scale {
    float sent;
    float reciprocal;  // L / max|v|
  };

  static constexpr std::int32_t kOffset = 1 << (kBits - 1);
  static constexpr float kLevels = static_cast<float>(kOffset - 1);
  /// Below this the reciprocal overflows or the quotient loses bits: such a block is sent as zeros, and its values stay
  /// in the residual.
  static constexpr float kSmallest = kBits <= 4 ? 0x1p-125F : 0x1p-119F;

  OCTAVO_RULE static Scale scale(float largest) {
    if (largest < kSmallest) return {0.0F, 0.0F};
    return {largest / kLevels, kLevels / largest};
  }

  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale, auto dither) {
    const std::int32_t level = nearest_whole(value * scale.reciprocal + dither);
    return static_cast<std::uint32_t>(bounded(level, dither) + kOffset);
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) {
    return static_cast<float>(static_cast<std::int32_t>(code) - kOffset) * sent;
  }

 private:
  OCTAVO_RULE static std::int32_t bounded(std::int32_t level, NoDither) { return level; }
  /// Bounds levels of 6 to 8 bits: 127 plus the largest dither can be as much as 127.5, which rounds to 128. So can 63
  /// and 31 where a device rounds the reciprocal to a neighbour of the nearest value.
  OCTAVO_RULE static std::int32_t bounded(std::int32_t level, float) {
    if constexpr (kBits < 6) return level;
    level = level < kOffset ? level : kOffset - 1;
    return level > -kOffset ? level : 1 - kOffset;
  }
};

}  // namespace octavo::rules
