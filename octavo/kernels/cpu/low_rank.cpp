// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/low_rank.h"

#include "octavo/kernels/cpu/lane_sum.h"
#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

constexpr std::uint64_t kChunk = 1024;  // elements of a row that stay in L1
constexpr std::uint64_t kVectors = kGroup / kVectorFloats;

/// Adds the products of whole groups to the lanes of rules::lane_sum.
OCTAVO_INLINE void add_products(const float* values, const float* factor, std::uint64_t count, FloatVector* sums) {
  FloatVector lanes[kVectors];
  std::memcpy(lanes, sums, sizeof lanes);
  for (std::uint64_t i = 0; i < count; i += kGroup) {
    for (std::uint64_t v = 0; v < kVectors; ++v) {
      const std::uint64_t at = i + v * kVectorFloats;
      lanes[v] += load_vector(values + at) * load_vector(factor + at);
    }
  }
  std::memcpy(sums, lanes, sizeof lanes);
}

/// Does the same for fewer elements than a group, which are filled up with zeros; these change no sum.
OCTAVO_INLINE void add_last_products(const float* values, const float* factor, std::uint64_t count, FloatVector* sums) {
  float padded[2][kGroup] = {};
  std::memcpy(padded[0], values, count * sizeof *values);
  std::memcpy(padded[1], factor, count * sizeof *factor);
  add_products(padded[0], padded[1], kGroup, sums);
}

OCTAVO_INLINE float sum_of_lanes(FloatVector* lanes) {
  for (std::uint64_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::uint64_t v = 0; v < half; ++v) lanes[v] += lanes[v + half];
  }
  return add_halves<kVectorFloats>(lanes[0]);
}

/// Adds a row's products to the sums of its columns.
OCTAVO_INLINE void add_scaled(const float* values, float factor, std::uint64_t count, float* sums) {
  for (std::uint64_t i = 0; i < count; ++i) sums[i] += values[i] * factor;
}

/// Works out a part of a row of the product, and zeros up to the end of the last group.
OCTAVO_INLINE void multiply(const rules::LowRank& shape, const float* left, const float* right, std::uint64_t row,
                            std::uint64_t column, std::uint64_t count, float* result) {
  const std::uint64_t groups = (count + kGroup - 1) / kGroup;
  std::memset(result, 0, groups * kGroup * sizeof *result);
  for (std::uint64_t k = 0; k < shape.rank; ++k) {
    add_scaled(right + k * shape.columns + column, left[k * shape.rows + row], count, result);
  }
  for (std::uint64_t i = 0; i < count; ++i) result[i] = rules::quiet(result[i]);
}

}  // namespace

void find_left_factor(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* right, float* left) {
  float values[kChunk];
  FloatVector lanes[rules::kLargestRank][kVectors];
  for (std::uint64_t row = first; row < first + count; ++row) {
    std::memset(lanes, 0, shape.rank * sizeof *lanes);
    for_each_block(shape.columns, kChunk, [&](std::uint64_t, std::uint64_t column, std::uint64_t size) {
      work_out(in, row * shape.columns + column, size, values);
      const std::uint64_t whole = size / kGroup * kGroup;
      for (std::uint64_t k = 0; k < shape.rank; ++k) {
        const float* const factor = right + k * shape.columns + column;
        add_products(values, factor, whole, lanes[k]);
        if (whole < size) add_last_products(values + whole, factor + whole, size - whole, lanes[k]);
      }
    });
    for (std::uint64_t k = 0; k < shape.rank; ++k) left[k * shape.rows + row] = rules::quiet(sum_of_lanes(lanes[k]));
  }
}

void find_right_factor(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                       std::uint64_t count, const float* left, float* right) {
  float values[kChunk];
  for_each_block(count, kChunk, [&](std::uint64_t, std::uint64_t begin, std::uint64_t size) {
    float* const sums = right + first + begin;
    for (std::uint64_t k = 0; k < shape.rank; ++k) std::memset(sums + k * shape.columns, 0, size * sizeof *sums);
    for (std::uint64_t row = 0; row < shape.rows; ++row) {
      work_out(in, row * shape.columns + first + begin, size, values);
      for (std::uint64_t k = 0; k < shape.rank; ++k) {
        add_scaled(values, left[k * shape.rows + row], size, sums + k * shape.columns);
      }
    }
    for (std::uint64_t k = 0; k < shape.rank; ++k) {
      float* const row = sums + k * shape.columns;
      for (std::uint64_t i = 0; i < size; ++i) row[i] = rules::quiet(row[i]);
    }
  });
}

void multiply_factors(Queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* left, const float* right, float* out, rules::Residual* next,
                      std::uint32_t* nonfinite) {
  const Store how = choose_store(count * shape.columns), residual_how = choose_residual_store(count * shape.columns);
  float values[kChunk], result[kChunk];
  std::uint32_t largest = 0;
  for (std::uint64_t row = first; row < first + count; ++row) {
    for_each_block(shape.columns, kChunk, [&](std::uint64_t, std::uint64_t column, std::uint64_t size) {
      const std::uint64_t at = row * shape.columns + column;
      multiply(shape, left, right, row, column, size, result);
      if (next) {  // before the result, which may lie where the gradient is
        work_out(in, at, size, values);
        for (std::uint64_t i = 0; i < size; ++i) values[i] = rules::left_over_of(values[i], result[i]);
        keep_residual({next, residual_how}, in, at, values, size);
      }
      const std::uint32_t own = largest_magnitude(result, size);
      largest = own > largest ? own : largest;
      for_each_group(size, [&](std::uint64_t i, auto part) { store_part(how, result + i, part, out + at + i); });
    });
  }
  report(largest < rules::kInfinityBits, nonfinite);
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
