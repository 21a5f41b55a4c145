// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/block_codec.h"

namespace octavo::rules {

/// Floats of few bits: a sign, kExponentBits and kMantissaBits, with denormals, but without infinities and NaNs. The
/// least positive value is 2^(1 - kBias - kMantissaBits). `kLargestCode` is the code of the greatest value.
template <unsigned kExponentBits, unsigned kMantissaBits, int kBias, std::uint32_t kLargestCode>
struct MiniFloat {
  static constexpr unsigned kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr unsigned kShift = 23 - kMantissaBits;                     // place of a mantissa in a float's bits
  static constexpr std::uint32_t kRebias = (127U - kBias) << kMantissaBits;  // difference of biases, in units of a code
  static constexpr float power_of_two(int exponent) {
    float power = 1;
    for (; exponent > 0; --exponent) power *= 2;
    for (; exponent < 0; ++exponent) power /= 2;
    return power;
  }
  static constexpr float kLeast = power_of_two(1 - kBias - static_cast<int>(kMantissaBits));
  static constexpr float kLeastNormal = power_of_two(1 - kBias);
  static constexpr std::uint32_t kSign = 1U << (kBits - 1);
  static constexpr float kGreatest =
      power_of_two(static_cast<int>(kLargestCode >> kMantissaBits) - kBias) *
      (1 + static_cast<float>(kLargestCode & ((1U << kMantissaBits) - 1)) / static_cast<float>(1U << kMantissaBits));

  /// Returns the code of a finite value, rounded to nearest even. A value beyond the greatest becomes the greatest.
  OCTAVO_RULE static std::uint32_t code(float value) {
    const std::uint32_t bits = magnitude_bits(value);
    const std::uint32_t half = (1U << (kShift - 1)) - 1 + (bits >> kShift & 1U);
    const std::uint32_t normal = ((bits + half) >> kShift) - kRebias;
    const float small = from_bits(bits) < kLeastNormal ? from_bits(bits) : 0.0F;
    const std::uint32_t chosen =
        from_bits(bits) < kLeastNormal ? static_cast<std::uint32_t>(nearest_whole(small * (1 / kLeast))) : normal;
    const std::uint32_t bounded = chosen < kLargestCode ? chosen : kLargestCode;
    return bounded | (to_bits(value) >> 31U << (kBits - 1));
  }

  OCTAVO_RULE static float value(std::uint32_t code) {
    const std::uint32_t magnitude = code & (kSign - 1);
    const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kLeast;
    const float normal = from_bits((magnitude + kRebias) << kShift);
    const float chosen = magnitude < (1U << kMantissaBits) ? small : normal;
    return from_bits(to_bits(chosen) | (code & kSign) << (32 - kBits));
  }
};

/// A block is sent as the scale that makes its largest magnitude the format's greatest value, and one code per element.
template <class Float, std::uint64_t kDefaultBlock>
struct ScaledFloat {
  static constexpr unsigned kBits = Float::kBits;
  static constexpr bool kHasScale = true, kLeavesError = true, kKeepsMagnitude = true, kDithers = false;
  static constexpr std::uint64_t kBlock = kDefaultBlock;
  static constexpr std::uint32_t kGreatest = Float::kSign - 1;  // not below what encoders send, and a number too
  using Statistic = LargestMagnitude;
  struct Scale {
    float sent;
    float reciprocal;
  };

  static constexpr float kLargest = Float::kGreatest;
  /// Below this a reciprocal overflows or a quotient loses bits: such a block is sent as zeros, and its values stay in
  /// the residual.
  static constexpr float kSmallest = 0x1p-100F;

  OCTAVO_RULE static Scale scale(float largest) {
    if (largest < kSmallest) return {0.0F, 0.0F};
    return {largest / kLargest, kLargest / largest};
  }
  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale, auto) {
    return Float::code(value * scale.reciprocal);
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float sent) { return Float::value(code) * sent; }
};

// E4M3 and E5M2 are the two forms of fp8 (Micikevicius et al. 2022) without infinities and NaNs, which blocks never
// have. E3M0, only a sign and an exponent, is what Streaming DiLoCo sends (Douillard et al. 2025).
using E4M3 = MiniFloat<4, 3, 7, 0x7E>;
using E5M2 = MiniFloat<5, 2, 15, 0x7B>;
using E3M0 = MiniFloat<3, 0, 3, 0x7>;
using Half = MiniFloat<5, 10, 15, 0x7BFF>;

}  // namespace octavo::rules
