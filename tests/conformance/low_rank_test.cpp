// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

/// A matrix with its factors and residual, misaligned by `offset` elements.
struct Problem {
  rules::LowRank shape;
  std::uint64_t offset;
  std::vector<float> values;
  std::vector<rules::Residual> residual;

  Problem(const rules::LowRank& shape, std::uint64_t offset, const std::vector<float>& of)
      : shape(shape), offset(offset), values(of) {
    for (const float value : finite_values(values.size(), 12)) residual.push_back(rules::to_residual(value, 0x8000));
  }
  std::uint64_t count() const { return shape.rows * shape.columns; }
  EncodeInput input() const {
    EncodeInput in{values.data()};
    if (offset % 2 == 1) in.residual = residual.data();
    in.rounding_key = 78;
    return in.from(offset);
  }
};

void expect_same_factors(const Problem& p, const std::vector<float>& left, const std::vector<float>& right) {
  const auto [rows, columns, rank] = p.shape;
  Guarded<float> want_left(rank * rows), have_left(rank * rows, p.offset);
  reference().find_left_factor({}, p.input(), p.shape, 0, rows, right.data(), want_left.data());
  tested().find_left_factor({}, p.input(), p.shape, 0, rows / 2, right.data(), have_left.data());
  tested().find_left_factor({}, p.input(), p.shape, rows / 2, rows - rows / 2, right.data(), have_left.data());
  have_left.expect_same_bits(want_left);
  have_left.expect_untouched_around();
  Guarded<float> want_right(rank * columns), have_right(rank * columns, p.offset);
  reference().find_right_factor({}, p.input(), p.shape, 0, columns, left.data(), want_right.data());
  tested().find_right_factor({}, p.input(), p.shape, 0, columns / 3, left.data(), have_right.data());
  tested().find_right_factor({}, p.input(), p.shape, columns / 3, columns - columns / 3, left.data(),
                             have_right.data());
  have_right.expect_same_bits(want_right);
  have_right.expect_untouched_around();
}

/// `in_place`: the product replaces the gradient.
void expect_same_product(const Problem& p, const std::vector<float>& left, const std::vector<float>& right,
                         bool in_place) {
  const std::uint64_t half = p.shape.rows / 2;
  Guarded<float> want(p.count()), have(p.count(), p.offset);
  Guarded<rules::Residual> want_next(p.count()), have_next(p.count(), p.offset);
  EncodeInput in = p.input();
  std::uint32_t wanted_nonfinite = 0, nonfinite = 0;
  reference().multiply_factors({}, in, p.shape, 0, p.shape.rows, left.data(), right.data(), want.data(),
                               want_next.data(), &wanted_nonfinite);
  if (in_place) {
    std::copy_n(in.gradient, p.count(), have.data());
    in.gradient = have.data();
  }
  tested().multiply_factors({}, in, p.shape, 0, half, left.data(), right.data(), have.data(), have_next.data(),
                            &nonfinite);
  tested().multiply_factors({}, in, p.shape, half, p.shape.rows - half, left.data(), right.data(), have.data(),
                            have_next.data(), &nonfinite);
  have.expect_same_bits(want);
  have.expect_untouched_around();
  have_next.expect_same_bits(want_next);
  have_next.expect_untouched_around();
  EXPECT_EQ(nonfinite, wanted_nonfinite);
}

void expect_equals_reference(const rules::LowRank& shape, std::uint64_t offset, bool finite = true) {
  SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.columns << " rank " << shape.rank << " offset "
                                    << offset);
  const std::uint64_t count = shape.rows * shape.columns + offset;
  const Problem problem(shape, offset, finite ? finite_values(count, 5) : any_values(count, 5));
  const std::vector<float> left = finite_values(shape.rank * shape.rows, 6);
  const std::vector<float> right = finite_values(shape.rank * shape.columns, 7);
  expect_same_factors(problem, left, right);
  expect_same_product(problem, left, right, offset % 3 == 0);
}

TEST(LowRank, EqualsReference) {
  for (const std::uint64_t rank : {1, 2, 4, 7, 64}) {
    for (const std::uint64_t offset : kOffsets) {
      for (const auto& [rows, columns] :
           {std::pair{1, 1}, {1, 70}, {70, 1}, {16, 63}, {17, 64}, {9, 65}, {3, 1024}, {5, 1100}, {130, 257}}) {
        expect_equals_reference({static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rank}, offset);
      }
    }
    expect_equals_reference({40, 300, rank}, 1, /*finite=*/false);
  }
  expect_equals_reference({600, 1100, 4}, 0);  // large enough to be written around the caches
}

/// Where the matrix has the factors' rank, the product of the best factors is the matrix: two steps of the power method
/// find them here.
TEST(LowRank, AMatrixOfItsRankIsRecovered) {
  constexpr rules::LowRank kShape = {24, 40, 1};
  std::vector<float> matrix(kShape.rows * kShape.columns), left(kShape.rows), right(kShape.columns, 1.0F);
  for (std::uint64_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = static_cast<float>(i / kShape.columns + 1) * static_cast<float>(i % kShape.columns + 3);
  }
  tested().find_left_factor({}, {matrix.data()}, kShape, 0, kShape.rows, right.data(), left.data());
  float square = 0;
  for (const float x : left) square += x * x;
  for (float& x : left) x /= std::sqrt(square);
  tested().find_right_factor({}, {matrix.data()}, kShape, 0, kShape.columns, left.data(), right.data());
  std::vector<float> result(matrix.size());
  std::vector<rules::Residual> next(matrix.size());
  tested().multiply_factors({}, {matrix.data()}, kShape, 0, kShape.rows, left.data(), right.data(), result.data(),
                            next.data(), nullptr);
  for (std::uint64_t i = 0; i < matrix.size(); ++i) {
    EXPECT_NEAR(result[i], matrix[i], 1e-5F * matrix.back());
    EXPECT_NEAR(rules::from_residual(next[i]), matrix[i] - result[i], 1e-6F * matrix.back());
  }
}

}  // namespace

}  // namespace octavo::conformance
