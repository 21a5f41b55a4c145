// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/counter_random.h"
#include "octavo/rules/float_bits.h"
#include "octavo/rules/portable.h"

/// The count sketch of a tensor (Charikar, Chen and Farach-Colton 2002): a matrix of few cells, float32 [rows,
/// columns]. It is linear in the tensor, so that sketches of several ranks may be added, and the largest elements can
/// be estimated from it.
///
/// In every row an element is added, with a random sign, to the cell that a hash chooses. That cell, with the sign, is
/// an unbiased estimate of the element. Its variance is at most the sum of the squares of all other elements / columns.
/// The estimate of the sketch is the median over the rows.
///
/// Hashes are computed where they are needed and stored nowhere. A group of 64 consecutive elements draws a column p
/// and 64 signs together, and its element number j is added at column p ^ j. The cells of a group are therefore one
/// block of 64 columns, which suits vectors and caches. Elements of different groups still share a cell with a
/// probability of 1 / columns, and those of one group never do, so the bound on the variance is that of one hash per
/// element.
///
/// Values are added to a cell in the order of their elements, in float32. The bits of the cells therefore do not depend
/// on which thread computes which cells, and inserting a tensor in consecutive ranges is the same as inserting it at
/// once. (Sums in fixed point would need no order, but a pass for the scale, cells of 64 bits and atomics.) A cell
/// whose sum is ever not finite is a NaN from then on, and so is every estimate that reads it.
namespace octavo::rules {

inline constexpr std::uint64_t kSketchGroup = 64;  // elements that are placed together, and columns of a block

/// The hashes of one row.
struct SketchRow {
  std::uint64_t place_key, sign_key, columns;

  /// Returns the column in [0, columns) to which the first element of a group is added. It multiplies instead of
  /// dividing, so that any number of columns is as fast as a power of two.
  OCTAVO_RULE constexpr std::uint64_t place(std::uint64_t group) const {
    return random_base(place_key, group) * columns >> 32;
  }
  /// Returns the signs of a group: bit j is 1 where element j is subtracted.
  OCTAVO_RULE constexpr std::uint64_t signs(std::uint64_t group) const { return derive_key(sign_key, group); }
};

/// Consecutive blocks of a sketch; they are numbered row by row.
struct SketchBlocks {
  std::uint64_t first, count;
};

/// Columns [begin, end) of a row.
struct SketchColumns {
  std::uint64_t begin, end;
};

struct CountSketch {
  std::uint64_t key;
  std::uint64_t rows;     // 1, 3 or 5
  std::uint64_t columns;  // columns of each row: a multiple of kSketchGroup, below 2^32

  OCTAVO_RULE constexpr std::uint64_t cells() const { return rows * columns; }
  OCTAVO_RULE constexpr std::uint64_t blocks() const { return cells() / kSketchGroup; }
  OCTAVO_RULE constexpr SketchRow row(std::uint64_t number) const {
    return {derive_key(key, 2 * number), derive_key(key, 2 * number + 1), columns};
  }
  /// Returns the columns of a row that are in the part; none where the part has nothing of the row.
  OCTAVO_RULE constexpr SketchColumns columns_of(SketchBlocks part, std::uint64_t row_number) const {
    const std::uint64_t row_begin = row_number * columns, row_end = row_begin + columns;
    const std::uint64_t begin = part.first * kSketchGroup, end = begin + part.count * kSketchGroup;
    if (end <= row_begin || row_end <= begin) return {0, 0};
    return {begin < row_begin ? 0 : begin - row_begin, (end < row_end ? end : row_end) - row_begin};
  }
};

/// Returns `value`, or -value where bit j of a group's signs is 1.
OCTAVO_RULE float signed_in_sketch(float value, std::uint64_t signs, std::uint64_t j) {
  return from_bits(to_bits(value) ^ static_cast<std::uint32_t>(signs >> j) << 31);
}

/// Returns what a cell keeps of a sum: the sum, or a NaN where it is not finite.
OCTAVO_RULE float sketch_cell(float sum) { return is_finite(sum) ? sum : from_bits(kQuietNaNBits); }

/// Returns the estimate of an element from its cells in 1, 3 or 5 rows, to which its signs have been applied: their
/// median, or a NaN where one of them is not finite. Where zeros of both signs could be the median, it does not matter
/// which one is, but it is always the same.
template <std::uint64_t kRows>
OCTAVO_RULE float sketch_estimate(const float (&cells)[kRows]) {
  static_assert(kRows == 1 || kRows == 3 || kRows == 5);
  const auto lower = [](float a, float b) { return a < b ? a : b; };
  const auto upper = [](float a, float b) { return a < b ? b : a; };
  const auto median_of_3 = [&](float a, float b, float c) { return upper(lower(a, b), lower(upper(a, b), c)); };
  std::uint32_t largest = 0;
  for (const float cell : cells) largest = largest < magnitude_bits(cell) ? magnitude_bits(cell) : largest;
  float median = cells[0];
  if constexpr (kRows == 3) median = median_of_3(cells[0], cells[1], cells[2]);
  if constexpr (kRows == 5) {
    const float low_a = lower(cells[0], cells[1]), high_a = upper(cells[0], cells[1]);
    const float low_b = lower(cells[2], cells[3]), high_b = upper(cells[2], cells[3]);
    median = median_of_3(cells[4], upper(low_a, low_b), lower(high_a, high_b));
  }
  return largest < kInfinityBits ? median : from_bits(kQuietNaNBits);
}

}  // namespace octavo::rules
