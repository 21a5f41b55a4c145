// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"

/// The largest values of every tile, and how their places are sent.
///
/// A tile's largest values are those of the greatest magnitude, and among equal ones those with the lowest index. A NaN
/// is larger than an infinity. The values are sent in the order of their indices. The indices are coded by Elias and
/// Fano (1974): the low bits of each index as they are, the high bits in unary. Their number of bits is fixed, and at
/// most 2 per index above the least possible. 64 of 4096 take 8 bits each (their entropy is 7.4).
namespace octavo::rules {

struct TopK {
  std::uint64_t tile;  // elements; the last tile may be shorter
  std::uint64_t kept;  // values kept of a whole tile; at least 1, at most all

  /// Only tiles of at most 2^20 elements are cut short. The product of a whole tensor's size and what is kept of it
  /// might not fit into 64 bits.
  OCTAVO_RULE constexpr std::uint64_t kept_of(std::uint64_t size) const {
    return size == tile ? kept : (size * kept + tile - 1) / tile;
  }
  OCTAVO_RULE constexpr std::uint64_t kept_in(std::uint64_t count) const {
    return count / tile * kept + kept_of(count % tile);
  }
  OCTAVO_RULE constexpr std::uint64_t tiles(std::uint64_t count) const { return count / tile + (count % tile != 0); }
  /// Returns the size of tile number `number` of `count` elements; the last tile may be shorter.
  OCTAVO_RULE constexpr std::uint64_t size_of(std::uint64_t number, std::uint64_t count) const {
    const std::uint64_t rest = count - number * tile;
    return rest < tile ? rest : tile;
  }
};

/// The indices of one tile, in little-endian words of 32 bits. First come the `low_bits` low bits of each index, from
/// the lowest bit of the first word on. Then, in new words, come bits of which number (index >> low_bits) + j is 1 for
/// index number j.
struct IndexWords {
  std::uint64_t kept, size;
  std::uint32_t low_bits;
  std::uint64_t low_words, words;

  OCTAVO_RULE static constexpr IndexWords of(std::uint64_t size, std::uint64_t kept) {
    if (kept == 0) return {};
    std::uint32_t low_bits = 0;
    while (low_bits < 31 && kept << (low_bits + 1) <= size) ++low_bits;
    const std::uint64_t low_words = (kept * low_bits + 31) / 32;
    const std::uint64_t high = kept + ((size - 1) >> low_bits) + 1;
    return {kept, size, low_bits, low_words, low_words + (high + 31) / 32};
  }

  /// Writes index number j by or_into(number of a word, bits), to words that were 0.
  template <class OrInto>
  OCTAVO_RULE void put(std::uint64_t j, std::uint64_t index, OrInto or_into) const {
    const std::uint64_t at = j * low_bits, high = (index >> low_bits) + j;
    const std::uint64_t low = (index & ((1ULL << low_bits) - 1)) << at % 32;
    if (static_cast<std::uint32_t>(low) != 0) or_into(at / 32, static_cast<std::uint32_t>(low));
    if (low >> 32 != 0) or_into(at / 32 + 1, static_cast<std::uint32_t>(low >> 32));
    or_into(low_words + high / 32, std::uint32_t{1} << high % 32);
  }

  /// Returns index number j; bit number `high` of the second part is the one that is 1 for it. word_at(i) returns word
  /// i.
  template <class WordAt>
  OCTAVO_RULE std::uint64_t index(std::uint64_t j, std::uint64_t high, WordAt word_at) const {
    const std::uint64_t at = j * low_bits;
    std::uint64_t window = low_words == 0 ? 0 : word_at(at / 32);
    if (at % 32 + low_bits > 32) window |= std::uint64_t{word_at(at / 32 + 1)} << 32;
    return (high - j) << low_bits | (window >> at % 32 & ((1ULL << low_bits) - 1));
  }

  /// Calls visit(j, index) for all indices in order. If no encoder made the words, some indices may be left out, but
  /// none is beyond the tile.
  template <class WordAt, class Visit>
  OCTAVO_RULE void for_each(WordAt word_at, Visit visit) const {
    std::uint64_t j = 0;
    for (std::uint64_t w = low_words; w < words; ++w) {
      for (std::uint32_t word = word_at(w); word != 0 && j < kept; word &= word - 1, ++j) {
        const std::uint64_t high = (w - low_words) * 32 + static_cast<std::uint64_t>(__builtin_ctz(word));
        const std::uint64_t place = index(j, high, word_at);
        if (place < size) visit(j, place);
      }
    }
  }
};

/// Returns the number of words for the indices of all tiles of `count` elements, one tile after another.
OCTAVO_RULE constexpr std::uint64_t index_words(const TopK& shape, std::uint64_t count) {
  const std::uint64_t last = count % shape.tile;
  return count / shape.tile * IndexWords::of(shape.tile, shape.kept).words +
         IndexWords::of(last, shape.kept_of(last)).words;
}

/// Where a tile's elements and results lie among those of all tiles.
struct TopTile {
  std::uint64_t first, size, kept, first_kept, first_word;
  OCTAVO_RULE static TopTile of(const TopK& shape, std::uint64_t number, std::uint64_t count) {
    const std::uint64_t first = number * shape.tile, size = shape.size_of(number, count);
    return {first, size, shape.kept_of(size), number * shape.kept,
            number * IndexWords::of(shape.tile, shape.kept).words};
  }
};

}  // namespace octavo::rules
