// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

struct Selection {
  Guarded<float> values;
  Guarded<std::uint32_t> indices;
  Guarded<rules::Residual> next;

  Selection(const rules::TopK& shape, std::uint64_t count, std::uint64_t offset)
      : values(shape.kept_in(count), offset), indices(rules::index_words(shape, count), offset), next(count, offset) {}

  /// Selects values, then settles as if half of each value had been sent.
  void make(const KernelTable& table, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape) {
    std::vector<float> scratch(top_k_scratch(count, shape));
    table.select_top({}, in, count, shape, scratch.data(), values.data(), indices.data(), next.data());
    const std::vector<float> sent = halves();
    table.settle_top({}, in, count, shape, values.data(), sent.data(), indices.data(), next.data());
  }
  std::vector<float> halves() {
    std::vector<float> sent(values.data(), values.data() + values.count());
    for (float& value : sent) value *= 0.5F;
    return sent;
  }
};

void expect_selection_equals_reference(const rules::TopK& shape, std::uint64_t count, std::uint64_t offset,
                                       const std::vector<float>& values, bool has_residual) {
  SCOPED_TRACE(::testing::Message() << shape.kept << " of " << shape.tile << ", count " << count << " offset " << offset
                                    << " residual " << has_residual);
  std::vector<rules::Residual> residual;
  for (const float value : finite_values(count + offset, 12)) residual.push_back(rules::to_residual(value, 0x8000));
  EncodeInput in{values.data()};
  if (has_residual) in.residual = residual.data();
  in.rounding_key = 77;
  in = in.from(offset);

  Selection expected(shape, count, 0), got(shape, count, offset);
  expected.make(reference(), in, count, shape);
  got.make(tested(), in, count, shape);
  got.values.expect_same_bits(expected.values);
  got.indices.expect_same_bits(expected.indices);
  got.next.expect_same_bits(expected.next);
  got.values.expect_untouched_around();
  got.indices.expect_untouched_around();
  got.next.expect_untouched_around();

  Guarded<float> gathered_wanted(shape.kept_in(count)), gathered(shape.kept_in(count), offset);
  Guarded<rules::Residual> others_wanted(count), others(count, offset);
  reference().gather_top({}, in, expected.indices.data(), count, shape, gathered_wanted.data(), others_wanted.data());
  tested().gather_top({}, in, got.indices.data(), count, shape, gathered.data(), others.data());
  gathered.expect_same_bits(gathered_wanted);
  gathered.expect_same_bits(expected.values);
  gathered.expect_untouched_around();
  others.expect_same_bits(others_wanted);
  others.expect_untouched_around();

  const std::vector<float> sent = expected.halves();
  expect_same_results(count, offset, [&](const KernelTable& table, Store how, float* out, std::uint32_t* nonfinite) {
    Selection& from = &table == &tested() ? got : expected;
    table.scatter_top({}, sent.data(), from.indices.data(), count, shape, how, out, nonfinite);
  });
}

/// One of a tile, few of many, as many kept as not, and all of a tile.
const std::vector<rules::TopK> kShapes = {{64, 1},   {64, 8},      {64, 64},     {4096, 64},
                                          {4096, 8}, {4096, 2048}, {1 << 16, 64}};

TEST(TopK, EqualsReference) {
  for (const rules::TopK& shape : kShapes) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) {
        expect_selection_equals_reference(shape, count, offset, finite_values(count + offset, 5), offset % 2 == 1);
      }
    }
  }
}

TEST(TopK, OfAllEqualsReference) {
  for (const std::uint64_t count : {1ULL, 63ULL, 4097ULL, 100001ULL}) {
    for (const std::uint64_t kept : {std::uint64_t{1}, count / 100 + 1, count / 2 + 1, count}) {
      expect_selection_equals_reference({count, kept}, count, 3, finite_values(count + 3, 6), true);
    }
  }
}

TEST(TopK, LargeOutputsEqualReference) {
  expect_selection_equals_reference({4096, 64}, kLargeCount, 0, finite_values(kLargeCount, 7), true);
}

TEST(TopK, NanAndInfinityComeFirst) {
  for (const rules::TopK& shape : kShapes) {
    expect_selection_equals_reference(shape, 10007, 1, any_values(10008, 8), false);
  }
}

/// Of equal values the first are kept, also where all candidates are in few of the sets that bound the search.
TEST(TopK, TiesGoToTheLowestIndex) {
  constexpr std::uint64_t kCount = 8192;
  const rules::TopK shape = {4096, 64};
  std::vector<float> equal(kCount, -1.0F), zeros(kCount), clustered(kCount, 0.5F);
  for (std::uint64_t i = 0; i < kCount; i += 256) clustered[i] = 2.0F;
  zeros[4000] = 1.0F;
  for (const auto& values : {equal, zeros, clustered}) {
    expect_selection_equals_reference(shape, kCount, 0, values, false);
  }
  std::vector<float> scratch(top_k_scratch(kCount, shape)), kept(128);
  std::vector<std::uint32_t> indices(rules::index_words(shape, kCount));
  tested().select_top({}, {zeros.data()}, kCount, shape, scratch.data(), kept.data(), indices.data(), nullptr);
  std::vector<std::uint64_t> found;
  rules::IndexWords::of(4096, 64).for_each([&](std::uint64_t word) { return indices[word]; },
                                           [&](std::uint64_t, std::uint64_t index) { found.push_back(index); });
  std::vector<std::uint64_t> expected(63);
  for (std::uint64_t i = 0; i < 63; ++i) expected[i] = i;
  expected.push_back(4000);
  EXPECT_EQ(found, expected);
}

/// The format is that of docs/formats.md, word by word.
TEST(TopK, IndicesAreCodedByEliasAndFano) {
  const auto layout = rules::IndexWords::of(64, 8);
  EXPECT_EQ(layout.low_bits, 3U);
  EXPECT_EQ(layout.low_words, 1U);
  EXPECT_EQ(layout.words, 2U);
  std::vector<float> values(64);
  for (const std::uint64_t i : {0, 1, 9, 18, 31, 45, 62, 63}) values[i] = 1.0F;
  std::vector<float> scratch(top_k_scratch(64, {64, 8})), kept(8);
  std::uint32_t words[2];
  tested().select_top({}, {values.data()}, 64, {64, 8}, scratch.data(), kept.data(), words, nullptr);
  std::uint32_t low = 0, high = 0;
  std::uint32_t j = 0;
  for (const std::uint32_t i : {0U, 1U, 9U, 18U, 31U, 45U, 62U, 63U}) {
    low |= i % 8 << 3 * j;
    high |= 1U << (i / 8 + j++);
  }
  EXPECT_EQ(words[0], low);
  EXPECT_EQ(words[1], high);
}

/// The second of two indices is far below the first: the low bits of equal high parts need not ascend.
TEST(TopK, IndicesThatDescendAreHarmless) {
  constexpr std::uint64_t kCount = 1U << 16;
  const rules::TopK shape = {kCount, 2};
  const auto layout = rules::IndexWords::of(kCount, 2);
  std::vector<std::uint32_t> words(layout.words);
  const auto put = [&](std::uint64_t word, std::uint32_t bits) { words[word] |= bits; };
  layout.put(0, kCount / 2 - 1, put);
  layout.put(1, 0, put);
  const float sent[] = {1.0F, 2.0F};
  Guarded<float> out(kCount);
  tested().scatter_top({}, sent, words.data(), kCount, shape, Store::assign, out.data(), nullptr);
  out.expect_untouched_around();
  EXPECT_EQ(out.data()[kCount / 2 - 1], 1.0F);
  EXPECT_EQ(out.data()[0], 2.0F);
}

/// Whatever the words are, nothing outside the buffers is read or written.
TEST(TopK, WordsThatNoEncoderMadeAreHarmless) {
  constexpr std::uint64_t kCount = 5000;
  const rules::TopK shape = {4096, 64};
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Guarded<std::uint32_t> indices(rules::index_words(shape, kCount));
    for (std::uint64_t i = 0; i < indices.count(); ++i) {
      indices.data()[i] = round == 0 ? ~0U : round == 1 ? 0U : static_cast<std::uint32_t>(random());
    }
    const auto values = finite_values(shape.kept_in(kCount), 4);
    Guarded<float> sent(values.size()), out(kCount);
    std::copy(values.begin(), values.end(), sent.data());
    tested().scatter_top({}, sent.data(), indices.data(), kCount, shape, Store::assign, out.data(), nullptr);
    out.expect_untouched_around();
  }
}

}  // namespace

}  // namespace octavo::conformance
