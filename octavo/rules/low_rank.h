// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"
#include "octavo/rules/portable.h"

/// A matrix as the product of two narrow ones (PowerSGD: Vogels et al. 2019). The orders of all sums are fixed: a left
/// factor's are by lanes (lane_sum.h) over a row, a right factor's in the order of the rows, a product's in that of the
/// rank. What is not a number is the quiet NaN.
namespace octavo::rules {

inline constexpr std::uint64_t kLargestRank = 64;

/// matrix[rows, columns], the left factor [rank, rows], the right one [rank, columns]; all of them row by row.
struct LowRank {
  std::uint64_t rows, columns, rank;
};

OCTAVO_RULE float quiet(float value) { return value == value ? value : from_bits(kQuietNaNBits); }

/// Of matrix * right-transposed, the element of a row that belongs to `right_row`. value(column): of the matrix's row.
template <class Value>
OCTAVO_RULE float left_factor(const LowRank& shape, const float* right_row, Value value) {
  return quiet(lane_sum(shape.columns, [&](std::uint64_t column) { return value(column) * right_row[column]; }));
}

/// Of the matrix transposed * left-transposed, the element of a column that belongs to `left_row`. value(row): of the
/// matrix's column.
template <class Value>
OCTAVO_RULE float right_factor(const LowRank& shape, const float* left_row, Value value) {
  float sum = 0.0F;
  for (std::uint64_t row = 0; row < shape.rows; ++row) sum += value(row) * left_row[row];
  return quiet(sum);
}

/// The product's element.
OCTAVO_RULE float product(const LowRank& shape, const float* left, const float* right, std::uint64_t row,
                          std::uint64_t column) {
  float sum = 0.0F;
  for (std::uint64_t k = 0; k < shape.rank; ++k) sum += left[k * shape.rows + row] * right[k * shape.columns + column];
  return quiet(sum);
}

}  // namespace octavo::rules
