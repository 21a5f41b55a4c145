// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// IEEE's half precision, infinities and NaNs included. What a wire sends in 16 bits is rules/plain_float.h.
namespace octavo::rules {

/// Rounded to nearest even; beyond 65504 infinite; a NaN stays a (quiet) NaN of the same sign.
OCTAVO_RULE std::uint32_t to_fp16(float value) {
  constexpr std::uint32_t kLeastNormal = 0x38800000U, kBeyond = 0x477FF000U;  // 2^-14; what rounds to infinity
  const std::uint32_t bits = magnitude_bits(value), sign = to_bits(value) >> 16 & 0x8000U;
  const std::uint32_t normal = (bits - 0x38000000U + 0xFFFU + (bits >> 13 & 1U)) >> 13;
  // adding a power of two leaves a denormal's bits, rounded to nearest even, in the lowest ones
  const float shifted = from_bits(bits < kLeastNormal ? bits : 0U) + 0.5F;
  const std::uint32_t denormal = to_bits(shifted) - to_bits(0.5F);
  const std::uint32_t finite = bits < kLeastNormal ? denormal : normal;
  const std::uint32_t special = bits > kInfinityBits ? 0x7E00U | (bits >> 13 & 0x3FFU) : 0x7C00U;
  return sign | (bits < kBeyond ? finite : special);
}

OCTAVO_RULE float from_fp16(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFU, sign = (bits & 0x8000U) << 16;
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t special = 0x7F800000U | (magnitude & 0x3FFU) << 13;
  const std::uint32_t normal = (magnitude << 13) + 0x38000000U;
  const std::uint32_t whole = magnitude < 0x400U ? to_bits(denormal) : normal;
  return from_bits(sign | (magnitude < 0x7C00U ? whole : special));
}

}  // namespace octavo::rules
