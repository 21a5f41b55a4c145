// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/top_k.h"

#include "octavo/kernels/cpu/values.h"

/// Magnitudes are compared as integers (rules::magnitude_bits), which orders NaNs, too. Arrays that are searched are
/// whole groups, padded with zeros. The padding comes after all zeros of the tile, and no more values are kept than the
/// tile has.
namespace octavo::cpu::OCTAVO_ISA {

namespace {

OCTAVO_INLINE std::uint64_t whole_groups(std::uint64_t count) { return (count + kGroup - 1) / kGroup * kGroup; }

/// Returns how many values have at least this magnitude.
std::uint64_t count_from(const float* values, std::uint64_t count, std::uint32_t least) {
  constexpr std::uint64_t kPart = 1U << 30;  // as many as 32 bits can count: the loop is then twice as fast
  std::uint64_t all = 0;
  for (std::uint64_t first = 0; first < count; first += kPart) {
    std::uint32_t found = 0;
    const std::uint64_t groups = smaller(kPart, count - first) / kGroup;
    for (std::uint64_t i = 0; i < groups * kGroup; ++i) {
      found += rules::magnitude_bits(values[first + i]) >= least ? 1U : 0U;
    }
    all += found;
  }
  return all;
}

/// Returns the kept-th largest magnitude, found bit by bit down to `last_bit`; with a higher last bit the result is a
/// lower bound.
std::uint32_t kth_largest(const float* values, std::uint64_t count, std::uint64_t kept, std::uint32_t last_bit = 1) {
  std::uint32_t least = 0;
  for (std::uint32_t bit = 1U << 30; bit >= last_bit; bit >>= 1) {
    if (count_from(values, count, least | bit) >= kept) least |= bit;
  }
  return least;
}

/// Calls visit(index) in order for the values that have at least this magnitude, as long as it returns true. Returns
/// whether it always did.
template <class Visit>
OCTAVO_INLINE bool for_each_from(const float* values, std::uint64_t count, std::uint32_t least, Visit visit) {
  for (std::uint64_t first = 0; first < count; first += kGroup) {
    std::uint32_t difference[kGroup];  // negative where the magnitude is smaller
    for (std::uint64_t j = 0; j < kGroup; ++j) difference[j] = rules::magnitude_bits(values[first + j]) - least;
    for (std::uint64_t mask = ~sign_mask(difference); mask != 0; mask &= mask - 1) {
      if (!visit(first + static_cast<std::uint64_t>(__builtin_ctzll(mask)))) return false;
    }
  }
  return true;
}

/// Takes the `kept` largest of some values, and of equal ones the first. Calls visit(index of a value) in order.
template <class Visit>
OCTAVO_INLINE void for_each_largest(const float* values, std::uint64_t count, std::uint64_t kept, Visit visit) {
  const std::uint32_t least = kth_largest(values, count, kept);
  std::uint64_t ties = kept - count_from(values, count, least + 1), left = kept;
  for_each_from(values, count, least, [&](std::uint64_t i) {
    const bool is_tie = rules::magnitude_bits(values[i]) == least;
    if (is_tie && ties == 0) return true;
    if (is_tie) --ties;
    visit(i);
    return --left > 0;
  });
}

/// The candidates for the largest values where few of many are kept. The maxima of disjoint sets give a lower bound: at
/// least `kept` values reach the kept-th largest of the maxima, and few more do. The candidates are found in two
/// passes.
class Candidates {
 public:
  /// `memory`: room for half of the values and two groups.
  Candidates(const float* values, std::uint64_t count, std::uint64_t kept, float* memory)
      : room_(whole_groups(4 * kept)), values_(memory), indices_(memory + room_) {
    constexpr std::uint32_t kLastBit = 1U << 17;  // 14 bits of a magnitude: half as many passes, few candidates more
    const std::uint32_t bound = kth_largest(maxima(values, count), room_, kept, kLastBit);
    fit_ = for_each_from(values, count, bound, [&](std::uint64_t i) {
      if (found_ == room_) return false;
      values_[found_] = values[i];
      indices_[found_++] = rules::from_bits(static_cast<std::uint32_t>(i));
      return true;
    });
    while (found_ % kGroup != 0) values_[found_++] = 0.0F;
  }
  /// Whether the candidates fit. If they do not, there are more than expected, because many values are equal or the
  /// largest share few of the sets.
  bool fit() const { return fit_; }
  const float* values() const { return values_; }
  std::uint64_t count() const { return found_; }
  std::uint64_t index(std::uint64_t i) const { return rules::to_bits(indices_[i]); }

 private:
  /// Returns the maxima of as many sets as there is room for. They are where the indices will be.
  const float* maxima(const float* values, std::uint64_t count) {
    for (std::uint64_t i = 0; i < room_; ++i) indices_[i] = rules::magnitude(values[i]);
    for (std::uint64_t first = room_; first < count; first += room_) {
      for (std::uint64_t i = 0, size = smaller(room_, count - first); i < size; ++i) {
        const std::uint32_t a = rules::to_bits(indices_[i]), b = rules::magnitude_bits(values[first + i]);
        indices_[i] = rules::from_bits(a < b ? b : a);
      }
    }
    return indices_;
  }

  std::uint64_t room_;
  float *values_, *indices_;  // the indices as bits
  std::uint64_t found_ = 0;
  bool fit_;
};

/// Selects the largest values of a tile. `tile_values`: whole groups, with room after them (top_k_scratch() floats in
/// all).
void select_tile(float* tile_values, const rules::TopTile& tile, float* values, std::uint32_t* words) {
  constexpr std::uint64_t kFew = 16;  // each set of which a maximum is taken has then about four values or more
  const auto layout = rules::IndexWords::of(tile.size, tile.kept);
  std::memset(words, 0, layout.words * sizeof *words);
  std::uint64_t j = 0;
  const auto take = [&](std::uint64_t i) {
    layout.put(j, i, [&](std::uint64_t word, std::uint32_t bits) { words[word] |= bits; });
    values[j++] = tile_values[i];
  };
  const std::uint64_t count = whole_groups(tile.size);
  if (kFew * tile.kept <= tile.size && tile.size <= UINT32_MAX) {  // the indices of candidates have 32 bits
    const Candidates few(tile_values, count, tile.kept, tile_values + count);
    if (few.fit()) {
      return for_each_largest(few.values(), few.count(), tile.kept, [&](std::uint64_t i) { take(few.index(i)); });
    }
  }
  for_each_largest(tile_values, count, tile.kept, take);
}

template <class Visit>
OCTAVO_INLINE void for_each_tile(const rules::TopK& shape, std::uint64_t count, Visit visit) {
  for (std::uint64_t number = 0, tiles = shape.tiles(count); number < tiles; ++number) {
    visit(rules::TopTile::of(shape, number, count));
  }
}

/// Calls visit(number of the selected, its index) for a tile.
template <class Visit>
OCTAVO_INLINE void for_each_selected(const rules::TopTile& tile, const std::uint32_t* indices, Visit visit) {
  const std::uint32_t* const words = indices + tile.first_word;
  const auto layout = rules::IndexWords::of(tile.size, tile.kept);
  layout.for_each([&](std::uint64_t word) { return words[word]; },
                  [&](std::uint64_t j, std::uint64_t i) { visit(tile.first_kept + j, i); });
}

}  // namespace

void select_top(Queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, float* scratch,
                float* values, std::uint32_t* indices, rules::Residual* next) {
  const Store how = choose_residual_store(count);
  for_each_tile(shape, count, [&](const rules::TopTile& tile) {
    work_out(in, tile.first, tile.size, scratch);
    if (next) keep_residual({next, how}, in, tile.first, scratch, tile.size);
    select_tile(scratch, tile, values + tile.first_kept, indices + tile.first_word);
  });
  end_stream();
}

void settle_top(Queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, const float* values,
                const float* sent, const std::uint32_t* indices, rules::Residual* next) {
  for_each_tile(shape, count, [&](const rules::TopTile& tile) {
    for_each_selected(tile, indices, [&](std::uint64_t k, std::uint64_t index) {
      const std::uint64_t i = tile.first + index;
      next[i] = residual_at(in, i, rules::left_over_of(values[k], sent[k]));
    });
  });
}

void gather_top(Queue, const EncodeInput& in, const std::uint32_t* indices, std::uint64_t count,
                const rules::TopK& shape, float* values, rules::Residual* next) {
  const Store how = choose_residual_store(count);
  constexpr std::uint64_t kChunk = 1024;
  for (std::uint64_t first = 0; next && first < count; first += kChunk) {
    float chunk[kChunk];
    const std::uint64_t size = smaller(kChunk, count - first);
    work_out(in, first, size, chunk);
    keep_residual({next, how}, in, first, chunk, size);
  }
  end_stream();
  for_each_tile(shape, count, [&](const rules::TopTile& tile) {
    for_each_selected(tile, indices, [&](std::uint64_t k, std::uint64_t index) {
      const std::uint64_t i = tile.first + index;
      values[k] = value_at(in, i);
      if (next) next[i] = residual_at(in, i, 0.0F);
    });
  });
}

void scatter_top(Queue, const float* sent, const std::uint32_t* indices, std::uint64_t count, const rules::TopK& shape,
                 Store wish, float* out, std::uint32_t* nonfinite) {
  const Store how = choose_store(wish, count);
  bool all_finite = true;
  for_each_tile(shape, count, [&](const rules::TopTile& tile) {
    all_finite &= scatter(how, tile.size, out + tile.first, [&](auto put) {
      for_each_selected(tile, indices, [&](std::uint64_t k, std::uint64_t i) { put(i, sent[k]); });
    });
  });
  report(all_finite, nonfinite);
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
