// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/simd.h"
#include "octavo/rules/state_codes.h"

/// Blocks of optimizer state (rules/state_codes.h) to floats and back, a register of elements at a time. A map's
/// tables are looked up in registers: a gather from memory for each element takes several times as long.
namespace octavo::cpu::OCTAVO_ISA {

/// Eight floats, repeated to fill a register.
struct alignas(64) LookupTable {
  float entries[kVectorFloats < 8 ? 8 : kVectorFloats];
  /// entry(i) for i in [0, 8).
  template <class Entry>
  static constexpr LookupTable of(Entry entry) {
    LookupTable table = {};
    std::uint32_t i = 0;
    for (float& one : table.entries) one = static_cast<float>(entry(i++ % 8));
    return table;
  }
};

/// A table in a register, of which each lane picks the entry that the lowest three bits of its index name.
class Lookup {
 public:
  OCTAVO_INLINE explicit Lookup(const LookupTable& table) { std::memcpy(&entries_, table.entries, sizeof entries_); }
  /// All entries times `factor`.
  OCTAVO_INLINE Lookup(const LookupTable& table, float factor) : Lookup(table) { entries_ *= factor; }
  OCTAVO_INLINE FloatVector operator[](IntVector index) const {
#if defined(__AVX512F__)
    const auto entries = reinterpret_cast<__m512>(entries_);
    return reinterpret_cast<FloatVector>(
        _mm512_maskz_permutexvar_ps(0xFFFF, reinterpret_cast<__m512i>(index), entries));
#elif defined(__AVX2__)
    const auto entries = reinterpret_cast<__m256>(entries_);
    return reinterpret_cast<FloatVector>(_mm256_permutevar8x32_ps(entries, reinterpret_cast<__m256i>(index)));
#else
    FloatVector picked;
    for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) picked[lane] = entries_[index[lane] & 7];
    return picked;
#endif
  }

 private:
  Register<sizeof(LookupTable::entries) / sizeof(float)>::Floats entries_;
};

/// The decade of a magnitude, or the one below, by two octaves at a time: their decades are looked up as bytes, by the
/// upper seven bits of a float's exponent, of which the lowest four tell octaves above 2^-23 apart.
template <class Map>
struct DecadeGuess {
  alignas(16) std::uint8_t of_octaves[16] = {};
  constexpr DecadeGuess() {
    float least = 0x1p-23F;
    for (std::uint32_t exponent = 104 / 2; exponent <= 127 / 2; ++exponent, least *= 4) {
      std::uint32_t decade = 0;
      for (std::uint32_t i = 1; i < Map::kLevels; ++i) decade += least >= Map::kBorders[i] ? 1U : 0U;
      of_octaves[exponent % 16] = static_cast<std::uint8_t>(decade);
    }
  }
  OCTAVO_INLINE IntVector operator()(FloatVector size) const {
    const IntVector octaves = as_ints(greater(size, 0x1p-23F)) >> 24;
#if defined(__AVX512F__)
    const __m512i table = _mm512_maskz_broadcast_i32x4(0xFFFF, *reinterpret_cast<const __m128i*>(of_octaves));
    return reinterpret_cast<IntVector>(_mm512_shuffle_epi8(table, reinterpret_cast<__m512i>(octaves)));
#elif defined(__AVX2__)
    const __m256i table = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(of_octaves));
    return reinterpret_cast<IntVector>(_mm256_shuffle_epi8(table, reinterpret_cast<__m256i>(octaves)));
#else
    IntVector found;
    for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) found[lane] = of_octaves[octaves[lane] & 15];
    return found;
#endif
  }
};

/// The codes of a block, whichever their width, as bytes of their own; the block is padded to its full size by zeros.
template <class Map>
OCTAVO_INLINE void load_state_codes(const std::uint8_t* from, std::uint64_t count, std::uint8_t* codes) {
  if constexpr (Map::kBits == 8) {
    std::memcpy(codes, from, count);
  } else {
    for (std::uint64_t i = 0; i < count / 2; ++i) {
      codes[2 * i] = from[i] >> 4;
      codes[2 * i + 1] = from[i] & 15;
    }
    if (count % 2 != 0) codes[count - 1] = from[count / 2] >> 4;
  }
  std::memset(codes + count, 0, Map::kBlock - count);
}

template <class Map>
OCTAVO_INLINE void store_state_codes(const std::uint8_t* codes, std::uint64_t count, std::uint8_t* to) {
  if constexpr (Map::kBits == 8) {
    std::memcpy(to, codes, count);
  } else {
    for (std::uint64_t i = 0; i < count / 2; ++i) {
      to[i] = static_cast<std::uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
    }
    if (count % 2 != 0) to[count / 2] = static_cast<std::uint8_t>(codes[count - 1] << 4);
  }
}

/// What decoding a block of a map takes beside its codes.
template <class Map>
struct StateDecoder;

template <unsigned kDecades, bool kSigned>
struct StateDecoder<rules::DynamicMap<kDecades, kSigned>> {
  using Map = rules::DynamicMap<kDecades, kSigned>;
  static constexpr std::uint32_t kRotation = kSigned ? 127 % 8 : 0;  // of a decade in a float's exponent
  static constexpr float by_exponent(const typename Map::Table& table, std::uint32_t exponent) {
    const std::uint32_t decade = (exponent - kRotation) % 8;
    return decade < Map::kLevels ? table[decade] : 0.0F;
  }
  static constexpr LookupTable kSlopes = LookupTable::of([](auto i) { return by_exponent(Map::kSlopes, i); });
  static constexpr LookupTable kOffsets = LookupTable::of([](auto i) { return by_exponent(Map::kOffsets, i); });
  Lookup slopes, offsets;
  OCTAVO_INLINE explicit StateDecoder(float kept) : slopes(kSlopes, kept), offsets(kOffsets, kept) {}
  OCTAVO_INLINE FloatVector operator()(IntVector codes) const {
    const IntVector signed_number = codes - Map::kZeroCode;
    const IntVector sign = signed_number >> 31;
    const FloatVector number = to_floats(kSigned ? (signed_number ^ sign) - sign : codes + 1);
    const IntVector exponent = as_ints(number) >> 23;
    const FloatVector value = slopes[exponent] * number + offsets[exponent];
    const IntVector is_other = (codes == Map::kZeroCode) ^ -1;
    return as_floats((as_ints(value) ^ (sign & static_cast<std::int32_t>(rules::kSignMask))) & is_other);
  }
};

template <>
struct StateDecoder<rules::LinearMap4> {
  float step;
  OCTAVO_INLINE explicit StateDecoder(float kept) : step(kept * 0.0625F) {}
  OCTAVO_INLINE FloatVector operator()(IntVector codes) const { return to_floats(codes + 1) * step; }
};

/// What encoding a block takes: codes less 128; of those beyond the range of a signed byte its ends are meant.
template <class Map>
struct StateEncoder;

template <unsigned kDecades, bool kSigned>
struct StateEncoder<rules::DynamicMap<kDecades, kSigned>> {
  using Map = rules::DynamicMap<kDecades, kSigned>;
  static constexpr float by_decade(const typename Map::Table& table, std::uint32_t decade) {
    return decade < Map::kLevels ? table[decade] : __builtin_inff();
  }
  static constexpr LookupTable kNextBorders = LookupTable::of([](auto i) { return by_decade(Map::kBorders, i + 1); });
  static constexpr LookupTable kSteepness = LookupTable::of([](auto i) { return by_decade(Map::kSteepness, i); });
  static constexpr LookupTable kShifts = LookupTable::of([](auto i) { return by_decade(Map::kShifts, i); });
  static constexpr LookupTable kLasts =
      LookupTable::of([](auto i) { return i < Map::kLevels ? Map::last_number(i) : 0; });
  static constexpr DecadeGuess<Map> kGuess = {};
  Lookup next_borders{kNextBorders}, steepness{kSteepness}, shifts{kShifts}, lasts{kLasts};
  float reciprocal;

  OCTAVO_INLINE explicit StateEncoder(float its_reciprocal) : reciprocal(its_reciprocal) {}

  OCTAVO_INLINE IntVector operator()(FloatVector values) const {
    constexpr auto kWholeBits = static_cast<std::int32_t>(rules::kToWholeBits);
    const FloatVector scaled = values * reciprocal, size = magnitudes(scaled);
    const IntVector guess = kGuess(size);
    const IntVector decade = guess - (size >= next_borders[guess]);
    const FloatVector place = size * steepness[decade] + shifts[decade];
    const FloatVector number = lesser(place, lasts[decade]);  // rounding keeps the order, and last numbers are whole
    if constexpr (kSigned) {
      const IntVector sign = as_ints(scaled) & static_cast<std::int32_t>(rules::kSignMask);
      const FloatVector signed_number = as_floats(as_ints(number) | sign);
      // a negative value of the extreme's size has a number too large for it, which 4 bits do not cut off
      const FloatVector bounded = kDecades == 7 ? signed_number : greater(signed_number, 1.0F - Map::kTop);
      return as_ints(bounded + rules::kToWhole) - (kWholeBits - Map::kZeroCode + 128);
    } else {
      const FloatVector positive = greater(number, static_cast<float>(Map::kFirst));
      return ((as_ints(positive + rules::kToWhole) - (kWholeBits + 1)) & (size > 0.0F)) - 128;
    }
  }
};

template <>
struct StateEncoder<rules::LinearMap4> {
  float reciprocal;
  OCTAVO_INLINE explicit StateEncoder(float its_reciprocal) : reciprocal(its_reciprocal) {}
  OCTAVO_INLINE IntVector operator()(FloatVector values) const {
    const FloatVector number = greater(lesser(values * reciprocal, 1.0F) * 16.0F, 1.0F);
    return as_ints(number + rules::kToWhole) - static_cast<std::int32_t>(rules::kToWholeBits + 1 + 128);
  }
};

/// `values`: Map::kBlock floats, those behind `count` of no meaning.
template <class Map>
OCTAVO_INLINE void decode_state(const std::uint8_t* from, float kept, std::uint64_t count, float* values) {
  std::uint8_t copy[Map::kBlock];
  const std::uint8_t* codes = from;
  if (Map::kBits != 8 || count < Map::kBlock) {
    load_state_codes<Map>(from, count, copy);
    codes = copy;
  }
  const StateDecoder<Map> decoded(kept);
  for (std::uint64_t i = 0; i < Map::kBlock; i += kVectorFloats) {
    store_vector(decoded(load_bytes(codes + i)), values + i);
  }
}

/// Of a block of floats; those behind `count` become zeros.
template <class Map>
OCTAVO_INLINE rules::StateScale scale_of_block(float* values, std::uint64_t count) {
  std::memset(values + count, 0, (Map::kBlock - count) * sizeof(float));
  constexpr std::uint64_t kChains = 4;  // so that a comparison need not wait for the one before
  FloatVector greatest[kChains] = {}, least[kChains] = {};
  for (std::uint64_t i = 0; i < Map::kBlock; i += kChains * kVectorFloats) {
    for (std::uint64_t k = 0; k < kChains; ++k) {
      const FloatVector vector = load_vector(values + i + k * kVectorFloats);
      greatest[k] = greater(vector, greatest[k]);
      if constexpr (Map::kSigned) least[k] = lesser(vector, least[k]);
    }
  }
  FloatVector largest = greater(greater(greatest[0], greatest[1]), greater(greatest[2], greatest[3]));
  FloatVector smallest = lesser(lesser(least[0], least[1]), lesser(least[2], least[3]));
  for (std::uint32_t half = kVectorFloats / 2; half > 0; half /= 2) {
    largest = greater(exchange_lanes(largest, half), largest);
    if constexpr (Map::kSigned) smallest = lesser(exchange_lanes(smallest, half), smallest);
  }
  return rules::state_scale(rules::extreme_of(largest[0], -smallest[0]));
}

/// `values`: Map::kBlock floats.
template <class Map>
OCTAVO_INLINE void encode_state(const float* values, std::uint64_t count, const rules::StateScale& scale,
                                std::uint8_t* to, float* kept) {
  *kept = scale.kept;
  std::uint8_t copy[Map::kBlock];
  const bool is_direct = Map::kBits == 8 && count == Map::kBlock;
  std::uint8_t* const codes = is_direct ? to : copy;
  const StateEncoder<Map> encoded(scale.reciprocal);
  for (std::uint64_t i = 0; i < Map::kBlock; i += kVectorFloats) {
    store_bytes(encoded(load_vector(values + i)), codes + i);
  }
  if (!is_direct) store_state_codes<Map>(copy, count, to);
}

}  // namespace octavo::cpu::OCTAVO_ISA
