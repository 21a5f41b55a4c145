// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/orthonormal.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "octavo/rules/counter_random.h"
#include "octavo/rules/float_bits.h"

namespace octavo {

namespace {

using Row = std::vector<double>;

/// Sums in lanes, which the compiler may keep in a vector without changing the order of the sum.
double dot(const Row& a, const Row& b) {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {};
  const std::size_t whole = a.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t i = whole; i < a.size(); ++i) lanes[i - whole] += a[i] * b[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void draw(Row& row, std::uint64_t key) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<double>(rules::random_bits(key, i)) - 32767.5;
}

/// Subtracts from a row what lies in the directions of those before it. Returns whether something is left of it.
bool separate(Row& row, const std::vector<Row>& before) {
  constexpr double kDependent = 1e-12;  // relative to the square: what remains below it is the rounding of floats
  const double size = dot(row, row);
  for (int pass = 0; pass < 2; ++pass) {
    for (const Row& other : before) {
      const double along = dot(row, other);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] -= along * other[i];
    }
  }
  const double left = dot(row, row);
  if (left <= kDependent * size) return false;
  const double scale = 1 / std::sqrt(left);
  for (double& value : row) value *= scale;
  return true;
}

}  // namespace

void make_orthonormal(float* rows, std::uint64_t vectors, std::uint64_t length, std::uint64_t key) {
  if (!std::all_of(rows, rows + vectors * length, rules::is_finite)) {
    std::fill_n(rows, vectors * length, rules::from_bits(rules::kQuietNaNBits));
    return;
  }
  std::vector<Row> done;
  for (std::uint64_t v = 0; v < vectors; ++v) {
    Row row(rows + v * length, rows + (v + 1) * length);
    for (std::uint64_t attempt = 0; !separate(row, done); ++attempt) {
      draw(row, rules::derive_key(key, v << 32U | attempt));
    }
    std::transform(row.begin(), row.end(), rows + v * length, [](double value) { return static_cast<float>(value); });
    done.push_back(std::move(row));
  }
}

}  // namespace octavo
