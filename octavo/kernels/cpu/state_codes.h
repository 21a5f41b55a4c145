// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/simd.h"
#include "octavo/rules/state_codes.h"

/// Blocks of optimizer state (rules/state_codes.h) to floats and back, a register of elements at a time. A map's
/// tables are looked up in registers: a gather from memory for each element takes several times as long.
namespace octavo::cpu::OCTAVO_ISA {

using IntVector [[gnu::vector_size(kVectorFloats * sizeof(float))]] = std::int32_t;

OCTAVO_INLINE IntVector as_ints(FloatVector floats) { return reinterpret_cast<IntVector>(floats); }
OCTAVO_INLINE FloatVector as_floats(IntVector ints) { return reinterpret_cast<FloatVector>(ints); }
OCTAVO_INLINE FloatVector to_floats(IntVector ints) { return __builtin_convertvector(ints, FloatVector); }

OCTAVO_INLINE FloatVector lesser(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a < b ? a : b;
#endif
}

OCTAVO_INLINE FloatVector greater(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(
      _mm512_maskz_max_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}

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
    const FloatVector bounded = greater(size, FloatVector{} + 0x1p-23F);
    const IntVector octaves = as_ints(bounded) >> 24;
#if defined(__AVX512F__)
    const __m512i table = _mm512_maskz_broadcast_i32x4(0xFFFF, *reinterpret_cast<const __m128i*>(of_octaves));
    return reinterpret_cast<IntVector>(_mm512_shuffle_epi8(table, reinterpret_cast<__m512i>(octaves)));
#elif defined(__AVX2__)
    const __m256i table = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(of_octaves));
    return reinterpret_cast<IntVector>(_mm256_shuffle_epi8(table, reinterpret_cast<__m256i>(octaves)));
#else
    IntVector decades;
    for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) decades[lane] = of_octaves[octaves[lane] & 15];
    return decades;
#endif
  }
};

// Masks of all lanes, which change nothing, spare the compiler the unused vector that it would warn of.

OCTAVO_INLINE IntVector load_bytes(const std::uint8_t* bytes) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVector>(
      _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVector>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
  IntVector loaded;
  for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) loaded[lane] = bytes[lane];
  return loaded;
#endif
}

/// Integers as signed bytes; what is beyond their range becomes its end.
OCTAVO_INLINE void store_bytes(IntVector vector, std::uint8_t* bytes) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes),
                   _mm512_maskz_cvtsepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(vector)));
#elif defined(__AVX2__)
  const auto words = reinterpret_cast<__m256i>(vector);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes), _mm_packs_epi16(halves, halves));
#else
  for (std::uint64_t lane = 0; lane < kVectorFloats; ++lane) {
    const std::int32_t bounded = vector[lane] < 127 ? vector[lane] : 127;
    bytes[lane] = static_cast<std::uint8_t>(bounded > -128 ? bounded : -128);
  }
#endif
}

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
    const IntVector size = kSigned ? (signed_number ^ sign) - sign : codes + 1;
    const FloatVector number = to_floats(size);
    const IntVector exponent = as_ints(number) >> 23;
    const FloatVector value = slopes[exponent] * number + offsets[exponent];
    const IntVector is_zero = codes == Map::kZeroCode;
    return as_floats((as_ints(value) ^ (sign & static_cast<std::int32_t>(rules::kSignMask))) & ~is_zero);
  }
};

template <>
struct StateDecoder<rules::LinearMap4> {
  float step;
  OCTAVO_INLINE explicit StateDecoder(float kept) : step(kept * 0.0625F) {}
  OCTAVO_INLINE FloatVector operator()(IntVector codes) const { return to_floats(codes + 1) * step; }
};

/// What encoding a block takes: operator() returns what stands for a code as a signed byte, and code() makes the code
/// of it, for the whole block at once.
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
    constexpr float kRound = 12582912.0F;
    constexpr auto kRoundBits = static_cast<std::int32_t>(0x4B400000);  // of kRound
    const FloatVector scaled = values * reciprocal;
    const FloatVector size = lesser(magnitudes(scaled), FloatVector{} + 1.0F);
    const IntVector guess = kGuess(size);
    const IntVector decade = guess - (size >= next_borders[guess]);
    const FloatVector place = size * steepness[decade] + shifts[decade];
    const FloatVector number = lesser(place, lasts[decade]);  // rounding keeps the order, and last numbers are whole
    if constexpr (kSigned) {
      // negative for a positive value: a signed byte has room for -kTop and not for kTop, which is no negative's number
      const IntVector sign = ~as_ints(scaled) & static_cast<std::int32_t>(rules::kSignMask);
      return as_ints(as_floats(as_ints(number) | sign) + kRound) - kRoundBits;
    } else {
      const FloatVector positive = greater(number, FloatVector{} + static_cast<float>(Map::kFirst));
      return ((as_ints(positive + kRound) - (kRoundBits + 1)) & (size > 0.0F)) - 128;
    }
  }

  OCTAVO_INLINE static std::uint8_t code(std::uint8_t byte) {
    const auto signed_byte = static_cast<std::int8_t>(byte);
    if constexpr (kSigned) {
      const int bounded = kDecades == 7 || signed_byte < Map::kTop ? signed_byte : Map::kTop - 1;
      return static_cast<std::uint8_t>(Map::kZeroCode - bounded);
    } else {
      return static_cast<std::uint8_t>(signed_byte + 128);
    }
  }
};

template <>
struct StateEncoder<rules::LinearMap4> {
  float reciprocal;
  OCTAVO_INLINE explicit StateEncoder(float its_reciprocal) : reciprocal(its_reciprocal) {}
  OCTAVO_INLINE IntVector operator()(FloatVector values) const {
    constexpr float kRound = 12582912.0F;
    const FloatVector one = FloatVector{} + 1.0F, scaled = lesser(values * reciprocal, one);
    return as_ints(greater(scaled * 16.0F, one) + kRound) - 0x4B400001;  // of kRound, and 1
  }
  OCTAVO_INLINE static std::uint8_t code(std::uint8_t byte) { return byte; }
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
  for (std::uint64_t i = 0; i < Map::kBlock; i += kVectorFloats)
    store_vector(decoded(load_bytes(codes + i)), values + i);
}

/// rules::extreme_of a block of floats.
template <class Map>
OCTAVO_INLINE float extreme_of_block(const float* values) {
  FloatVector greatest = {}, least = {};
  for (std::uint64_t i = 0; i < Map::kBlock; i += kVectorFloats) {
    greatest = greater(load_vector(values + i), greatest);
    if constexpr (Map::kSigned) least = lesser(load_vector(values + i), least);
  }
  for (std::uint32_t half = kVectorFloats / 2; half > 0; half /= 2) {
    greatest = greater(exchange_lanes(greatest, half), greatest);
    if constexpr (Map::kSigned) least = lesser(exchange_lanes(least, half), least);
  }
  return rules::extreme_of(greatest[0], -least[0]);
}

/// `values`: Map::kBlock floats; those behind `count` become zeros.
template <class Map>
OCTAVO_INLINE void encode_state(float* values, std::uint64_t count, std::uint8_t* to, float* kept) {
  std::memset(values + count, 0, (Map::kBlock - count) * sizeof(float));
  const rules::StateScale scale = rules::state_scale(extreme_of_block<Map>(values));
  *kept = scale.kept;
  const StateEncoder<Map> encoded(scale.reciprocal);
  std::uint8_t codes[Map::kBlock];
  for (std::uint64_t i = 0; i < Map::kBlock; i += kVectorFloats) {
    store_bytes(encoded(load_vector(values + i)), codes + i);
  }
  for (std::uint64_t i = 0; i < Map::kBlock; ++i) codes[i] = StateEncoder<Map>::code(codes[i]);
  store_state_codes<Map>(codes, count, to);
}

}  // namespace octavo::cpu::OCTAVO_ISA
