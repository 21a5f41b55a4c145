// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// Codes of optimizer state: a block of elements is kept as one float32 scale and a code of 8 or 4 bits for each
/// element. A rule is a struct with these members:
///
///   kBits, kBlock    bits of a code; elements of a block
///   kSigned          false where all values are at least 0
///   Scale            `kept` is kept with the codes, the rest helps the encoder; state_scale() makes it
///   code(value, scale), decoded(code, kept)
///
/// With four bits, element 2i of a block is the high nibble of byte i.
namespace octavo::rules {

struct StateScale {
  float kept;
  float reciprocal;
};

/// Returns the scale of a block from its extreme, the value of the largest magnitude. The scale has the extreme's sign,
/// so that the extreme is the map's 1 whichever sign it has; a map has no -1. Below 2^-125 the reciprocal would
/// overflow, and the block is kept as zeros. The scale for an infinity is the largest float.
OCTAVO_RULE StateScale state_scale(float extreme) {
  constexpr float kLargest = 0x1.FFFFFEp127F;
  const float size = magnitude(extreme);
  const float bounded = with_sign_of(size < kLargest ? size : kLargest, extreme);
  return size < 0x1p-125F ? StateScale{0.0F, 0.0F} : StateScale{bounded, 1.0F / bounded};
}

/// Returns a block's extreme, with its sign, from its greatest value and the greatest of its negated values.
OCTAVO_RULE float extreme_of(float greatest, float greatest_negative) {
  return greatest >= greatest_negative ? greatest : -greatest_negative;
}

/// The dynamic map (Dettmers 2016, 2022): between one power of ten and the next, the values are equally spaced, and
/// each decade has twice as many values as the decade below it. `kDecades` is 7 for 8 bits and 3 for 4. The greatest
/// value is 1. Code 0 of the unsigned map and the middle code of the signed map stand for 0. The codes are those of
/// bitsandbytes.
///
/// Values are numbered by magnitude so that the numbers of a decade begin at a power of two: the exponent of a number
/// tells its decade. Within a decade a value is slope * number + offset. Number kTop is the value 1, in a decade of its
/// own. The distance between a value's code and the code of zero is the value's number less the number of zero.
template <unsigned kDecades, bool kIsSigned>
struct DynamicMap {
  static constexpr bool kSigned = kIsSigned;
  static constexpr unsigned kBits = kDecades + 1;
  static constexpr std::uint64_t kBlock = kBits == 8 ? 256 : 128;
  using Scale = StateScale;

  static constexpr unsigned kLevels = kDecades + 1;        // the decades, and the value 1
  static constexpr std::int32_t kFirst = kSigned ? 1 : 2;  // number of the least positive value
  static constexpr std::int32_t kTop = kFirst << kDecades;
  static constexpr std::int32_t kZeroCode = kSigned ? kTop - 1 : 0;
  static constexpr std::int32_t kZeroNumber = kFirst - 1;

  struct Table {
    float values[kLevels + 1];
    constexpr float operator[](std::uint32_t i) const { return values[i]; }
  };

  static constexpr double first_number(unsigned decade) { return static_cast<double>(kFirst << decade); }
  static constexpr double greatest_of(unsigned decade) {
    double power = 1;
    for (unsigned i = decade; i + 1 < kDecades; ++i) power /= 10;
    return power;
  }
  static constexpr double spacing(unsigned decade) { return 0.9 * greatest_of(decade) / first_number(decade); }
  /// Returns the value that has this number in a decade. Numbers outside of the decade continue its line: the value
  /// before the first of a decade would have the number first_number - 1.
  static constexpr double value_of(unsigned decade, double number) {
    if (decade == kDecades) return 1;
    return greatest_of(decade) * 0.1 + spacing(decade) * (number - first_number(decade) + 0.5);
  }

  template <class Entry>
  static constexpr Table made_of(Entry entry) {
    Table table = {};
    for (unsigned decade = 0; decade < kLevels; ++decade) table.values[decade] = static_cast<float>(entry(decade));
    table.values[kLevels] = __builtin_inff();
    return table;
  }

  // For decoding. Numbers are counted in quarters: 0 and kTop then have the same exponent modulo 8, and one slope
  // without an offset serves both. That offset is a negative zero, so that a zero is positive whichever sign the scale
  // has.
  static constexpr float kQuarters = 4;
  static constexpr Table kSlopes = made_of([](unsigned d) {  //
    return (d == kDecades ? 1 / first_number(d) : spacing(d)) / kQuarters;
  });
  static constexpr Table kOffsets = made_of([](unsigned d) { return d == kDecades ? -0.0 : value_of(d, 0); });
  // For encoding. kBorders has the magnitude from which on a value belongs to a decade, halfway between the two values
  // around it. kSteepness and kShifts give the value's distance.
  static constexpr Table kBorders = made_of([](unsigned d) {
    return d == 0 ? 0 : (value_of(d - 1, first_number(d) - 1) + value_of(d, first_number(d))) / 2;
  });
  /// Whether a decade ends at zero: the lowest decade of the signed map has one value, and what lies below half of it
  /// is 0.
  static constexpr bool ends_at_zero(unsigned decade) { return kSigned && decade == 0; }
  static constexpr Table kSteepness = made_of([](unsigned d) {
    if (d == kDecades) return 0.0;
    return ends_at_zero(d) ? 1 / value_of(0, 1) : 1 / spacing(d);
  });
  static constexpr Table kShifts = made_of([](unsigned d) {
    if (d == kDecades) return static_cast<double>(kTop - kZeroNumber);
    return ends_at_zero(d) ? 0.0 : -value_of(d, 0) / spacing(d) - kZeroNumber;
  });

  /// Returns the decade of a magnitude from 0 to 1.
  OCTAVO_RULE static constexpr std::uint32_t decade_of(float size) {
    std::uint32_t decade = 0;
    for (std::uint32_t i = 1; i < kLevels; ++i) decade += size >= kBorders[i] ? 1U : 0U;
    return decade;
  }

  /// Returns the distance of the last value of a decade.
  OCTAVO_RULE static constexpr std::int32_t last_distance(std::uint32_t decade) {
    return (decade == kDecades ? kTop : (kFirst << 1 << decade) - 1) - kZeroNumber;
  }

  OCTAVO_RULE static std::int32_t distance_of(float size) {
    const std::uint32_t decade = decade_of(size);
    const float place = fused(size, kSteepness[decade], kShifts[decade]);
    const float last = static_cast<float>(last_distance(decade));
    return nearest_whole(place < last ? place : last);
  }

  /// Returns the code of a value that is not a NaN and, where the map is unsigned, is at least 0. In an unsigned map a
  /// value that is not 0 does not become 0, unless all of its block is below 2^-125. A variance of 0 with a momentum
  /// that is not 0 would make a step of any size.
  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale) {
    const float scaled = value * scale.reciprocal;
    const std::int32_t distance = distance_of(magnitude(scaled));
    if constexpr (kSigned) {
      const std::int32_t bounded = distance < kTop ? distance : kTop - 1;
      return static_cast<std::uint32_t>(positive_bit(scaled) ? kZeroCode + distance : kZeroCode - bounded);
    } else {
      const std::int32_t positive = distance > 1 ? distance : 1;
      return static_cast<std::uint32_t>(scaled > 0.0F ? positive : 0);
    }
  }

  OCTAVO_RULE static float decoded(std::uint32_t code, float kept) {
    const std::int32_t steps = static_cast<std::int32_t>(code) - kZeroCode;
    if (steps == 0) return 0.0F;
    const float number = static_cast<float>(steps + kZeroNumber) * kQuarters;
    const std::uint32_t decade = (magnitude_bits(number) - to_bits(kFirst * kQuarters)) >> 23;
    const float offset = kOffsets[decade] * kept;
    return fused(kSlopes[decade] * kept, number, steps < 0 ? -offset : offset);
  }
};

/// Four bits for values of at least 0, equally spaced from 1/16 to 1 (Li et al. 2023). There is no zero, because most
/// small variances would become zero.
struct LinearMap4 {
  static constexpr bool kSigned = false;
  static constexpr unsigned kBits = 4;
  static constexpr std::uint64_t kBlock = 128;
  using Scale = StateScale;
  OCTAVO_RULE static std::uint32_t code(float value, const Scale& scale) {
    const float scaled = value * scale.reciprocal;
    const std::int32_t number = nearest_whole((scaled < 1.0F ? scaled : 1.0F) * 16.0F);
    return static_cast<std::uint32_t>(number > 1 ? number - 1 : 0);
  }
  OCTAVO_RULE static float decoded(std::uint32_t code, float kept) {
    return static_cast<float>(static_cast<std::int32_t>(code) + 1) * (kept * 0.0625F);
  }
};

// The maps in which momenta and variances are kept.
using Momentum8 = DynamicMap<7, true>;
using Variance8 = DynamicMap<7, false>;
using Momentum4 = DynamicMap<3, true>;
using Variance4 = LinearMap4;

}  // namespace octavo::rules
