// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "octavo/kernels/cpu/lookup.h"
#include "octavo/kernels/cpu/narrow.h"
#include "octavo/rules/state_codes.h"

/// Converts codes of optimizer state (rules/state_codes.h) to floats and back, kLanes elements at a time.
namespace octavo::cpu::OCTAVO_ISA {

/// Unpacks codes of any width to one byte each.
template <class Map>
OCTAVO_INLINE void unpack_codes(const std::uint8_t* from, std::uint64_t count, std::uint8_t* codes) {
  if constexpr (Map::kBits == 8) {
    std::memcpy(codes, from, count);
  } else {
    for (std::uint64_t i = 0; i < count / 2; ++i) {
      codes[2 * i] = from[i] >> 4;
      codes[2 * i + 1] = from[i] & 15;
    }
    if (count % 2 != 0) codes[count - 1] = from[count / 2] >> 4;
  }
}

template <class Map>
OCTAVO_INLINE void pack_codes(const std::uint8_t* codes, std::uint64_t count, std::uint8_t* to) {
  if constexpr (Map::kBits == 8) {
    std::memcpy(to, codes, count);
  } else {
    for (std::uint64_t i = 0; i < count / 2; ++i) {
      to[i] = static_cast<std::uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
    }
    if (count % 2 != 0) to[count / 2] = static_cast<std::uint8_t>(codes[count - 1] << 4);
  }
}

/// Decodes the codes of a block, and holds what that takes. A state without codes needs nothing.
template <class Map>
struct StateDecoder {
  explicit StateDecoder(float) {}
};

template <unsigned kDecades, bool kSigned>
struct StateDecoder<rules::DynamicMap<kDecades, kSigned>> {
  using Map = rules::DynamicMap<kDecades, kSigned>;
  /// A power of two. A code, counted in quarters, is added to it by setting its bits.
  static constexpr float kBase = 0x1p25F;
  static constexpr float kZero = kBase + Map::kQuarters * (Map::kZeroCode - Map::kZeroNumber);
  static constexpr std::uint32_t kFirstExponent = std::bit_cast<std::uint32_t>(Map::kQuarters * Map::kFirst) >> 23;

  static constexpr float by_exponent(const typename Map::Table& table, std::uint32_t exponent, float other) {
    const std::uint32_t decade = (exponent - kFirstExponent) % kLookupEntries;
    return decade < Map::kLevels ? table[decade] : other;
  }
  static constexpr LookupTable kSlopes = LookupTable::of([](auto i) { return by_exponent(Map::kSlopes, i, 0.0F); });
  static constexpr LookupTable kOffsets = LookupTable::of([](auto i) { return by_exponent(Map::kOffsets, i, -0.0F); });
  /// Whether zero has an entry of its own. The number of an unsigned zero is 1, and its exponent modulo 8 is that of
  /// another value.
  static constexpr bool kZeroHasEntry = kSigned || kLookupEntries > 8;

  Lookup slopes, offsets;
  OCTAVO_INLINE explicit StateDecoder(float kept) : slopes(kSlopes, kept), offsets(kOffsets, kept) {}
  OCTAVO_INLINE Floats operator()(const Ints& codes) const {
    const Floats number = as_floats(codes | std::bit_cast<std::int32_t>(kBase)) - kZero;
    const Ints exponent = as_ints(number) >> 23;
    Ints offset = as_ints(offsets[exponent]);
    if constexpr (kSigned) offset = offset ^ (as_ints(number) & static_cast<std::int32_t>(rules::kSignMask));
    const Floats value = fused(slopes[exponent], number, as_floats(offset));
    if constexpr (kZeroHasEntry) return value;
    return as_floats(as_ints(value) & each([](IntVector code) { return IntVector(code != 0); }, codes));
  }
};

template <>
struct StateDecoder<rules::LinearMap4> {
  float step;
  OCTAVO_INLINE explicit StateDecoder(float kept) : step(kept * 0.0625F) {}
  OCTAVO_INLINE Floats operator()(const Ints& codes) const {
    return each([](IntVector code) { return to_floats(code + 1); }, codes) * step;
  }
};

/// Finds the decade of magnitudes from kLeast to 1, by pairs of octaves: a pair contains no more than one border
/// between decades. The upper seven bits of a float's exponent name a pair; the lowest four of these bits tell the
/// pairs from kLeast on apart.
template <class Map>
struct DecadeFinder {
  static constexpr float kLeast = 0x1p-29F;
  static constexpr std::uint32_t kFirstPair = std::bit_cast<std::uint32_t>(kLeast) >> 24, kShift = 24;
  static constexpr std::uint32_t pair_of(std::uint32_t i) { return kFirstPair + (i - kFirstPair) % 16; }
  /// Returns the decade in which a pair of octaves begins.
  static constexpr std::uint32_t decade_of(std::uint32_t pair) {
    return Map::decade_of(std::bit_cast<float>(pair << kShift));
  }
#if defined(__AVX512F__)
  /// Returns what is added to a float so that it gets into the next pair of octaves if it is not below the border.
  static constexpr float carry_of(std::uint32_t pair) {
    const std::uint32_t border = std::bit_cast<std::uint32_t>(Map::kBorders[decade_of(pair) + 1]);
    return std::bit_cast<float>(border >> kShift == pair ? ((pair + 1) << kShift) - border : 0U);
  }
  static constexpr std::uint32_t decade_of_entry(std::uint32_t i) { return decade_of(pair_of(i)); }
  static constexpr LookupTable kCarries = LookupTable::of([](auto i) { return carry_of(pair_of(i)); });
  Lookup carries{kCarries};
  /// Returns for each magnitude the index of an entry in tables that are made by decade_of_entry().
  OCTAVO_INLINE Ints operator()(const Floats& size) const {
    return (as_ints(size) + as_ints(carries[as_ints(size) >> kShift])) >> kShift;
  }
#else
  static constexpr std::uint32_t decade_of_entry(std::uint32_t i) { return i; }
  /// Entry 0 is for magnitudes of 2 and above. It is also picked for the three other bytes of an index, which are 0.
  static constexpr ByteLookup kGuesses = ByteLookup::of([](auto i) { return i == 0 ? 0 : decade_of(pair_of(i)); });
  static constexpr LookupTable kNextBorders =
      LookupTable::of([](auto i) { return i < Map::kLevels ? Map::kBorders[i + 1] : __builtin_inff(); });
  Lookup next_borders{kNextBorders};
  OCTAVO_INLINE Ints operator()(const Floats& size) const {
    const Ints guess = each([](IntVector pair) { return kGuesses[pair]; }, as_ints(size) >> kShift);
    const Floats border = next_borders[guess];
    return each([](IntVector i, FloatVector a, FloatVector b) { return IntVector(i - (a >= b)); }, guess, size, border);
  }
#endif
};

/// Encodes the values of a block: as many at a time as there are bytes in a register.
template <class Map>
struct StateEncoder;

template <unsigned kDecades, bool kSigned>
struct StateEncoder<rules::DynamicMap<kDecades, kSigned>> {
  using Map = rules::DynamicMap<kDecades, kSigned>;
  using Decades = DecadeFinder<Map>;
  static constexpr float by_entry(const typename Map::Table& table, std::uint32_t i) {
    return Decades::decade_of_entry(i) < Map::kLevels ? table[Decades::decade_of_entry(i)] : 0.0F;
  }
  static constexpr LookupTable kSteepness = LookupTable::of([](auto i) { return by_entry(Map::kSteepness, i); });
  static constexpr LookupTable kShifts = LookupTable::of([](auto i) { return by_entry(Map::kShifts, i); });
  static constexpr ByteLookup kLasts = ByteLookup::of([](auto i) {
    return Decades::decade_of_entry(i) < Map::kLevels ? Map::last_distance(Decades::decade_of_entry(i)) : 0;
  });
  Decades decades;
  Lookup steepness{kSteepness}, shifts{kShifts};
  float factor;

  /// Codes of a signed map are worked out from opposite values. Positive values may have the distance 128, which 8 bits
  /// can hold only with a negative sign.
  OCTAVO_INLINE explicit StateEncoder(float reciprocal) : factor(kSigned ? -reciprocal : reciprocal) {}

  OCTAVO_INLINE Bytes operator()(const Floats& values) const {
    const Floats scaled = values * factor;
    const Floats size = each([](FloatVector x) { return size_of(x); }, scaled);
    const Ints entry = decades(size);
    const Floats place = fused(size, steepness[entry], shifts[entry]);
    const Bytes last = kLasts[narrowed<Bytes>(entry)];
    const Bytes distance = lesser(narrowed<Bytes>(nearest_wholes(place)), last);
    if constexpr (kSigned) {
      constexpr std::uint8_t kZeroCode = Map::kZeroCode;
      const SignedBytes sign = narrowed<SignedBytes>(as_ints(scaled));  // 127 or -128: the greatest distances in 8 bits
      const SignedBytes opposite = with_sign(SignedBytes(lesser(distance, Bytes(sign))), sign);
      const SignedBytes bounded =
          kDecades == 7 ? opposite : lesser(opposite, SignedBytes{} + static_cast<std::int8_t>(kZeroCode));
      return in_order(kZeroCode - Bytes(bounded));  // modulo 256
    } else {
      const Bytes is_positive = lesser(narrowed<Bytes>(as_ints(scaled)), Bytes{} + std::uint8_t{1});
      return in_order(greater(distance, is_positive));
    }
  }

 private:
  OCTAVO_INLINE static FloatVector size_of(FloatVector scaled) {
    return kSigned ? magnitudes_from(scaled, Decades::kLeast) : greater_positive(scaled, Decades::kLeast);
  }
};

template <>
struct StateEncoder<rules::LinearMap4> {
  float reciprocal;
  OCTAVO_INLINE explicit StateEncoder(float its_reciprocal) : reciprocal(its_reciprocal) {}
  OCTAVO_INLINE Bytes operator()(const Floats& values) const {
    const Floats bounded = each([](FloatVector x) { return lesser(x, 1.0F); }, values * reciprocal);
    const Bytes one = Bytes{} + std::uint8_t{1};
    return in_order(greater(narrowed<Bytes>(nearest_wholes(bounded * 16.0F)), one) - one);
  }
};

}  // namespace octavo::cpu::OCTAVO_ISA
