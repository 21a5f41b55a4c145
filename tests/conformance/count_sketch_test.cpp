// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/count_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

constexpr std::uint64_t kKey = 0x1234567890ABCDEF;

rules::SketchBlocks all_of(const rules::CountSketch& shape) { return {0, shape.blocks()}; }

/// Sketches of one row and of several; of one block, of few blocks, and of about as many cells as elements.
const std::vector<rules::CountSketch> kSketches = {{kKey, 1, 64},   {kKey, 1, 8192}, {kKey, 3, 64},
                                                   {kKey, 3, 1344}, {kKey, 5, 448},  {7, 5, 2048}};

void expect_equals_reference(const rules::CountSketch& shape, const EncodeInput& in, std::uint64_t count,
                             std::uint64_t offset) {
  SCOPED_TRACE(::testing::Message() << shape.rows << " rows of " << shape.columns << ", count " << count << " offset "
                                    << offset << " first " << in.first);
  const std::vector<float> before = finite_values(shape.cells(), 14);
  Guarded<float> want(shape.cells()), have(shape.cells(), offset);
  std::copy(before.begin(), before.end(), want.data());
  std::copy(before.begin(), before.end(), have.data());
  reference().insert_sketch({}, in, count, shape, all_of(shape), want.data());
  tested().insert_sketch({}, in, count, shape, all_of(shape), have.data());
  have.expect_same_bits(want);
  have.expect_untouched_around();

  Guarded<float> estimates_wanted(count), estimates(count, offset);
  reference().estimate_sketch({}, want.data(), shape, in.first, count, estimates_wanted.data());
  tested().estimate_sketch({}, have.data(), shape, in.first, count, estimates.data());
  estimates.expect_same_bits(estimates_wanted);
  estimates.expect_untouched_around();
}

EncodeInput input(const std::vector<float>& values, std::uint64_t offset) {
  EncodeInput in{values.data()};
  in.gradient_weight = 0.3F;
  in = in.from(offset);
  in.first = 1000 * offset;  // element 0, one in the middle of a group, and a group's first element
  return in;
}

TEST(CountSketch, EqualsReference) {
  for (const rules::CountSketch& shape : kSketches) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : {0, 1, 3, 8, 13}) {
        const std::vector<float> values = finite_values(count + offset, 5);
        expect_equals_reference(shape, input(values, offset), count, offset);
      }
    }
  }
}

TEST(CountSketch, EqualsReferenceWithAllThatAnInputMayHave) {
  constexpr std::uint64_t kCount = 4097;
  const auto gradient = finite_values(kCount, 1), momentum = finite_values(kCount, 2),
             preconditioner = finite_values(kCount, 3), others = finite_values(kCount, 4);
  std::vector<rules::Residual> residual;
  for (const float value : finite_values(kCount, 5)) residual.push_back(rules::to_residual(value, 0x8000));
  EncodeInput in{
      gradient.data(), residual.data(), momentum.data(), preconditioner.data(), others.data(), 0.1F, 0.9F, 0.5F};
  for (const std::uint64_t first : {0, 70, 128}) {
    in.first = first;
    for (const rules::CountSketch& shape : kSketches) expect_equals_reference(shape, in, kCount, 1);
  }
}

TEST(CountSketch, OfALargeTensorEqualsReference) {
  const std::vector<float> values = finite_values(kLargeCount, 7);
  expect_equals_reference({kKey, 3, 6400}, input(values, 0), kLargeCount, 0);
}

TEST(CountSketch, NanAndInfinityEqualReference) {
  for (const rules::CountSketch& shape : kSketches) {
    const std::vector<float> values = any_values(1001, 8);
    expect_equals_reference(shape, input(values, 1), 1000, 1);
  }
  const std::vector<float> huge(4096, std::numeric_limits<float>::max());  // their sums overflow in both directions
  expect_equals_reference({kKey, 3, 128}, input(huge, 0), huge.size(), 0);
}

/// The bits of the sums do not depend on which part has which blocks, nor on the number of ranges.
TEST(CountSketch, PartsAndRangesAddUpToTheSameBits) {
  constexpr std::uint64_t kCount = 10007;
  const std::vector<float> values = any_values(kCount, 9);
  for (const rules::CountSketch& shape : kSketches) {
    std::vector<float> at_once(shape.cells()), in_parts(shape.cells());
    tested().insert_sketch({}, {values.data()}, kCount, shape, all_of(shape), at_once.data());
    const EncodeInput all{values.data()};
    for (const auto& [first, count] :
         {std::pair<std::uint64_t, std::uint64_t>{0, 100}, {100, 28}, {128, kCount - 128}}) {
      for (std::uint64_t block = 0; block < shape.blocks(); block += 10) {
        tested().insert_sketch({}, all.from(first), count, shape,
                               {block, std::min<std::uint64_t>(10, shape.blocks() - block)}, in_parts.data());
      }
    }
    ASSERT_EQ(std::memcmp(at_once.data(), in_parts.data(), at_once.size() * sizeof(float)), 0);
  }
}

TEST(CountSketch, OtherBlocksAreNotTouched) {
  const rules::CountSketch shape = {kKey, 3, 640};
  const std::vector<float> values(5000, 1.0F);
  std::vector<float> sketch(shape.cells(), 0.5F);
  tested().insert_sketch({}, {values.data()}, values.size(), shape, {7, 11}, sketch.data());
  for (std::uint64_t i = 0; i < sketch.size(); ++i) {
    if (i / 64 < 7 || i / 64 >= 18) {
      ASSERT_EQ(sketch[i], 0.5F);
    }
  }
}

/// One bad element shows in everything that shares a cell with it, and above all in itself.
TEST(CountSketch, ANanOrAnInfinityShowsInItsEstimate) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const std::uint64_t rows : {1, 3, 5}) {
      const rules::CountSketch shape = {kKey, rows, 1024};
      std::vector<float> values(3000, 1.0F), sketch(shape.cells()), estimates(values.size());
      values[1234] = bad;
      tested().insert_sketch({}, {values.data()}, values.size(), shape, all_of(shape), sketch.data());
      values[1234] = -bad;  // inserting the opposite value does not repair the cells
      tested().insert_sketch({}, {values.data()}, values.size(), shape, all_of(shape), sketch.data());
      tested().estimate_sketch({}, sketch.data(), shape, 0, values.size(), estimates.data());
      EXPECT_TRUE(std::isnan(estimates[1234]));
      EXPECT_EQ(std::count_if(sketch.begin(), sketch.end(), [](float cell) { return std::isnan(cell); }),
                static_cast<std::ptrdiff_t>(rows));
      EXPECT_GT(std::count_if(estimates.begin(), estimates.end(), [](float e) { return std::isfinite(e); }), 2900);
    }
  }
}

TEST(CountSketch, TheEstimateIsTheMedian) {
  std::vector<float> order(5);
  std::iota(order.begin(), order.end(), -2.0F);
  do {
    const float five[] = {order[0], order[1], order[2], order[3], order[4]};
    EXPECT_EQ(rules::sketch_estimate(five), 0.0F);
    const float three[] = {order[0], order[1], order[2]};
    float sorted[] = {order[0], order[1], order[2]};
    std::sort(sorted, sorted + 3);
    EXPECT_EQ(rules::sketch_estimate(three), sorted[1]);
  } while (std::next_permutation(order.begin(), order.end()));
}

// ---- what the hashes must be

/// The column and the sign of an element in a row.
struct Hashed {
  std::uint64_t column;
  bool is_negative;
};
Hashed hashed(const rules::SketchRow& row, std::uint64_t i) {
  return {row.place(i / 64) ^ i % 64, (row.signs(i / 64) >> i % 64 & 1U) != 0};
}

/// Returns how far a statistic is from its expected value, in standard deviations.
double deviations(const std::vector<std::uint64_t>& counts) {
  const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  const double expected = total / static_cast<double>(counts.size()), free = static_cast<double>(counts.size() - 1);
  double chi_squared = 0;
  for (const std::uint64_t count : counts) chi_squared += std::pow(static_cast<double>(count) - expected, 2) / expected;
  return std::abs(chi_squared - free) / std::sqrt(2 * free);
}

TEST(CountSketch, ColumnsAreUniform) {
  for (const std::uint64_t columns : {64, 448, 4096, 19200}) {
    for (const std::uint64_t key : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
      for (const std::uint64_t r : {0, 4}) {
        const rules::SketchRow row = rules::CountSketch{key, 5, columns}.row(r);
        std::vector<std::uint64_t> first(columns);
        for (std::uint64_t group = 0; group < 64 * columns; ++group) {
          const std::uint64_t place = row.place(group);
          ASSERT_LT(place, columns);
          ++first[place];
        }
        EXPECT_LT(deviations(first), 5) << columns << " columns, key " << key << ", row " << r;
      }
    }
  }
}

/// Elements at various distances share a cell as often as with an independent hash per element, in one row and in two
/// rows. Elements of one group never share a cell.
TEST(CountSketch, PairsOfElementsCollideAsOftenAsTheyShould) {
  constexpr std::uint64_t kColumns = 128, kElements = 1U << 20;
  const rules::CountSketch shape = {kKey, 3, kColumns};
  const rules::SketchRow a = shape.row(0), b = shape.row(1);
  for (const std::uint64_t distance : {1, 17, 64, 65, 128, 1000, 4096, 65536, 1 << 19}) {
    double shared = 0, in_both = 0, expected = 0;
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const bool is_shared = hashed(a, i).column == hashed(a, i + distance).column;
      if (i / 64 == (i + distance) / 64) {
        ASSERT_FALSE(is_shared);
        continue;
      }
      expected += 1.0 / kColumns;
      shared += is_shared ? 1 : 0;
      in_both += is_shared && hashed(b, i).column == hashed(b, i + distance).column ? 1 : 0;
    }
    // either all elements of two groups share cells or none do: 64 times fewer independent draws
    EXPECT_NEAR(shared, expected, 5 * std::sqrt(64 * expected)) << "distance " << distance;
    EXPECT_NEAR(in_both, expected / kColumns, 5 * std::sqrt(64 * expected / kColumns)) << "distance " << distance;
  }
}

TEST(CountSketch, SignsAreFairAndIndependent) {
  constexpr std::uint64_t kElements = 1U << 20;
  const rules::CountSketch shape = {kKey, 5, 1024};
  const rules::SketchRow a = shape.row(0), b = shape.row(1);
  const auto sign = [](const rules::SketchRow& row, std::uint64_t i) {
    return hashed(row, i).is_negative ? -1.0 : 1.0;
  };
  const double deviation = std::sqrt(static_cast<double>(kElements));
  double sum = 0, of_rows = 0;
  for (std::uint64_t i = 0; i < kElements; ++i) {
    sum += sign(a, i);
    of_rows += sign(a, i) * sign(b, i);
  }
  EXPECT_LT(std::abs(sum), 5 * deviation);
  EXPECT_LT(std::abs(of_rows), 5 * deviation);
  for (const std::uint64_t distance : {1, 2, 7, 32, 63, 64, 65, 128, 4096}) {
    double product = 0;
    for (std::uint64_t i = 0; i < kElements; ++i) product += sign(a, i) * sign(a, i + distance);
    EXPECT_LT(std::abs(product), 5 * deviation) << "distance " << distance;
  }
  std::vector<std::uint64_t> by_column(2 * 64);  // the sign does not depend on the column
  for (std::uint64_t i = 0; i < kElements; i += 67) {
    const Hashed at = hashed(a, i);
    ++by_column[at.column % 64 * 2 + (at.is_negative ? 1 : 0)];
  }
  EXPECT_LT(deviations(by_column), 5);
}

/// Over keys, the mean of a row's estimates is the element, and their variance is the sum of all others' squares /
/// columns.
TEST(CountSketch, EstimatesOfARowAreUnbiasedWithTheVarianceOfTheory) {
  constexpr std::uint64_t kCount = 1000, kColumns = 128, kKeys = 4000, kElement = 100;
  std::vector<float> values(kCount);
  double others = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    values[i] = static_cast<float>(i % 19) - 9.0F;
    if (i / 64 != kElement / 64) others += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  const double variance = others / kColumns;  // elements of one group do not share cells
  double sum = 0, squares = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const rules::CountSketch shape = {key, 1, kColumns};
    std::vector<float> sketch(kColumns);
    float estimate;
    tested().insert_sketch({}, {values.data()}, kCount, shape, all_of(shape), sketch.data());
    tested().estimate_sketch({}, sketch.data(), shape, kElement, 1, &estimate);
    const double error = static_cast<double>(estimate - values[kElement]);
    sum += error;
    squares += error * error;
  }
  EXPECT_LT(std::abs(sum / kKeys), 5 * std::sqrt(variance / kKeys));
  EXPECT_NEAR(squares / kKeys / variance, 1, 0.15);
}

/// The purpose of a sketch: it finds the heaviest elements among many light ones.
TEST(CountSketch, FindsTheHeavy) {
  constexpr std::uint64_t kCount = 100000, kHeavy = 50;
  const rules::CountSketch shape = {kKey, 5, 8192};
  std::vector<float> values(kCount), sketch(shape.cells()), estimates(kCount);
  std::mt19937_64 random(1);
  for (auto& value : values) value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  std::vector<std::uint64_t> heavy;
  for (std::uint64_t k = 0; k < kHeavy; ++k) heavy.push_back(k * 1999 + 7);
  for (const std::uint64_t i : heavy) values[i] = i % 2 == 0 ? 40.0F : -40.0F;
  tested().insert_sketch({}, {values.data()}, kCount, shape, all_of(shape), sketch.data());
  tested().estimate_sketch({}, sketch.data(), shape, 0, kCount, estimates.data());
  std::vector<std::uint64_t> order(kCount);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::partial_sort(order.begin(), order.begin() + kHeavy, order.end(),
                    [&](auto a, auto b) { return std::abs(estimates[a]) > std::abs(estimates[b]); });
  order.resize(kHeavy);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, heavy);
}

}  // namespace

}  // namespace octavo::conformance
