// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/vectors.h"

/// Small tables that are looked up in registers. A gather from memory for each element takes several times as long.
namespace octavo::cpu::OCTAVO_ISA {

/// The number of entries in a table: a power of two.
inline constexpr std::uint32_t kLookupEntries = kVectorFloats < 8 ? 8 : kVectorFloats;

struct alignas(64) LookupTable {
  float entries[kLookupEntries];
  /// Returns the table of entry(i) for i in [0, kLookupEntries).
  template <class Entry>
  static constexpr LookupTable of(Entry entry) {
    LookupTable table = {};
    std::uint32_t i = 0;
    for (float& one : table.entries) one = static_cast<float>(entry(i++));
    return table;
  }
};

/// A table that is in a register where it can be. Each lane picks the entry that the lowest bits of its index name.
class Lookup {
 public:
  OCTAVO_INLINE explicit Lookup(const LookupTable& table) { std::memcpy(&entries_, table.entries, sizeof entries_); }
  /// The table with all entries times `factor`.
  OCTAVO_INLINE Lookup(const LookupTable& table, float factor) : Lookup(table) {
#if defined(__AVX2__)
    entries_ *= factor;
#else
    for (float& one : entries_) one *= factor;
#endif
  }
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
  OCTAVO_INLINE Floats operator[](const Ints& index) const {
    return each([this](IntVector i) { return (*this)[i]; }, index);
  }

 private:
#if defined(__AVX2__)
  Register<kLookupEntries>::Floats entries_;
#else
  float entries_[kLookupEntries];
#endif
};

/// A table of sixteen bytes. Each lane picks the byte that the lowest bits of its index name.
struct alignas(16) ByteLookup {
  std::uint8_t entries[16];
  /// Returns the table of entry(i) for i in [0, 16).
  template <class Entry>
  static constexpr ByteLookup of(Entry entry) {
    ByteLookup table = {};
    std::uint32_t i = 0;
    for (std::uint8_t& one : table.entries) one = static_cast<std::uint8_t>(entry(i++));
    return table;
  }
  /// Looks up indices below 128, each of which is a byte or an integer.
  template <class Index>
  OCTAVO_INLINE Index operator[](Index index) const {
#if defined(__AVX512F__)
    const __m512i table = _mm512_maskz_broadcast_i32x4(0xFFFF, *reinterpret_cast<const __m128i*>(entries));
    return reinterpret_cast<Index>(_mm512_shuffle_epi8(table, reinterpret_cast<__m512i>(index)));
#elif defined(__AVX2__)
    const __m256i table = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(entries));
    return reinterpret_cast<Index>(_mm256_shuffle_epi8(table, reinterpret_cast<__m256i>(index)));
#else
    for (std::uint64_t lane = 0; lane < sizeof index / sizeof index[0]; ++lane) index[lane] = entries[index[lane] & 15];
    return index;
#endif
  }
};

}  // namespace octavo::cpu::OCTAVO_ISA
