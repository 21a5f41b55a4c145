// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/low_rank.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void find_left_factor(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* right, float* left) {
  for (std::uint64_t row = first; row < first + count; ++row) {
    for (std::uint64_t k = 0; k < shape.rank; ++k) {
      left[k * shape.rows + row] = rules::left_factor(shape, right + k * shape.columns, [&](std::uint64_t column) {
        return value_at(in, row * shape.columns + column);
      });
    }
  }
}

void find_right_factor(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                       std::uint64_t count, const float* left, float* right) {
  for (std::uint64_t column = first; column < first + count; ++column) {
    for (std::uint64_t k = 0; k < shape.rank; ++k) {
      right[k * shape.columns + column] = rules::right_factor(
          shape, left + k * shape.rows, [&](std::uint64_t row) { return value_at(in, row * shape.columns + column); });
    }
  }
}

void multiply_factors(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* left, const float* right, float* out, rules::Residual* next,
                      std::uint32_t* nonfinite) {
  for (std::uint64_t i = first * shape.columns; i < (first + count) * shape.columns; ++i) {
    const float result = rules::product(shape, left, right, i / shape.columns, i % shape.columns);
    if (next) next[i] = residual_at(in, i, rules::left_over_of(value_at(in, i), result));
    report(rules::is_finite(result), nonfinite);
    out[i] = result;
  }
}

}  // namespace octavo::reference
