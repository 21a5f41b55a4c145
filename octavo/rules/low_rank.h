// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"
#include "octavo/rules/portable.h"

/// A matrix as the product of two narrow ones (PowerSGD: Vogels et al. 2019). The order of every sum is fixed: a left
/// factor sums over a row by lanes (lane_sum.h), a right factor over the rows in their order, and a product over the
/// rank in its order. A result that is not a number is the quiet NaN.
namespace octavo::rules {

inline constexpr std::uint64_t kLargestRank = 64;

/// The shapes: matrix[rows, columns], left factor[rank, rows] and right factor[rank, columns], all stored row by row.
struct LowRank {
  std::uint64_t rows, columns, rank;
};

OCTAVO_RULE float quiet(float value) { return value == value ? value : from_bits(kQuietNaNBits); }

/// Returns an element of matrix * right-transposed: the product of a row of the matrix and `right_row`. value(column):
/// an element of the matrix's row.
template <class Value>
OCTAVO_RULE float left_factor(const LowRank& shape, const float* right_row, Value value) {
  return quiet(lane_sum(shape.columns, [&](std::uint64_t column) { return value(column) * right_row[column]; }));
}

/// Returns an element of matrix-transposed * left-transposed: the product of a column of the matrix and `left_row`.
/// value(row): an element of the matrix's column.
template <class Value>
OCTAVO_RULE float right_factor(const LowRank& shape, const float* left_row, Value value) {
  float sum = 0.0F;
  for (std::uint64_t row = 0; row < shape.rows; ++row) sum += value(row) * left_row[row];
  return quiet(sum);
}

/// Returns an element of the product.
OCTAVO_RULE float product(const LowRank& shape, const float* left, const float* right, std::uint64_t row,
                          std::uint64_t column) {
  float sum = 0.0F;
  for (std::uint64_t k = 0; k < shape.rank; ++k) sum += left[k * shape.rows + row] * right[k * shape.columns + column];
  return quiet(sum);
}

}  // namespace octavo::rules
