// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/mini_float.h"

/// IEEE half precision: mini_float.h's Half, with infinities and NaNs. The codec that sends values in 16 bits is in
/// plain_float.h.
namespace octavo::rules {

/// Converts a float to float16, rounded to nearest even. A magnitude that rounds to more than 65504 becomes infinite; a
/// NaN stays a (quiet) NaN of the same sign.
OCTAVO_RULE std::uint32_t to_fp16(float value) {
  constexpr std::uint32_t kBeyond = 0x477FF000U;  // the least magnitude that rounds to infinity
  const std::uint32_t bits = magnitude_bits(value), sign = to_bits(value) >> 16 & 0x8000U;
  const std::uint32_t special = bits > kInfinityBits ? 0x7E00U | (bits >> 13 & 0x3FFU) : 0x7C00U;
  return bits < kBeyond ? Half::code(value) : sign | special;
}

OCTAVO_RULE float from_fp16(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFU, sign = (bits & 0x8000U) << 16;
  const float special = from_bits(sign | kInfinityBits | (magnitude & 0x3FFU) << 13);
  return magnitude < 0x7C00U ? Half::value(bits) : special;
}

}  // namespace octavo::rules
