// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/bf16.h"
#include "octavo/rules/block_codec.h"
#include "octavo/rules/mini_float.h"

/// Codecs without scales: the values themselves, in a float type.
namespace octavo::rules {

struct PlainFloat {
  static constexpr bool kHasScale = false, kKeepsMagnitude = true, kDithers = false;
  static constexpr std::uint64_t kBlock = 4096;
  struct Scale {};
};

struct Fp32 : PlainFloat {
  static constexpr unsigned kBits = 32;
  static constexpr bool kLeavesError = false;
  OCTAVO_RULE static std::uint32_t code(float value, const Scale&, auto) { return to_bits(value); }
  OCTAVO_RULE static float decoded(std::uint32_t code, float) { return from_bits(code); }
};

/// Values in bfloat16, rounded to nearest even; those beyond its range become infinite.
struct Bfloat16 : PlainFloat {
  static constexpr unsigned kBits = 16;
  static constexpr bool kLeavesError = true;
  OCTAVO_RULE static std::uint32_t code(float value, const Scale&, auto) { return to_bf16(value).bits; }
  OCTAVO_RULE static float decoded(std::uint32_t code, float) { return from_bf16({static_cast<std::uint16_t>(code)}); }
};

/// Values in float16, rounded to nearest even. Finite values beyond its range become its greatest value. Infinities and
/// NaNs are sent as infinity, which decodes to a NaN.
struct Fp16 : PlainFloat {
  static constexpr unsigned kBits = 16;
  static constexpr bool kLeavesError = true;
  static constexpr std::uint32_t kInfinity = 0x7C00;
  OCTAVO_RULE static std::uint32_t code(float value, const Scale&, auto) {
    const std::uint32_t code = Half::code(is_finite(value) ? value : 0.0F);
    return is_finite(value) ? code : kInfinity;
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float) {
    return (code & kInfinity) == kInfinity ? from_bits(kQuietNaNBits) : Half::value(code);
  }
};

}  // namespace octavo::rules
