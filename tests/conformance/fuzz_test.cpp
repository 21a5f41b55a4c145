// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/conformance/codec.h"

/// Decoders get bytes that no encoder wrote: they must write every value, and read or write nothing else.
/// OCTAVO_FUZZ_ROUNDS sets the number of payloads per codec (500).
namespace octavo::conformance {

namespace {

int rounds() {
  const char* const wanted = std::getenv("OCTAVO_FUZZ_ROUNDS");
  return wanted ? std::atoi(wanted) : 500;
}

/// Returns random bytes in a buffer of exactly that size; some buffers are all zeros or all ones.
std::vector<std::uint8_t> any_bytes(std::uint64_t count, std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(count);
  const std::uint64_t kind = random() % 8;
  for (auto& byte : bytes) byte = kind == 0 ? 0 : kind == 1 ? 255 : static_cast<std::uint8_t>(random());
  return bytes;
}

template <class T>
std::vector<T> any_words(std::uint64_t count, std::mt19937_64& random) {
  std::vector<T> words(count);
  const auto bytes = any_bytes(count * sizeof(T), random);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(words.data()));
  return words;
}

/// Whether two values are equal; any NaN equals any other, because a signaling one may have become quiet.
bool is_same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class Fuzz : public ::testing::TestWithParam<CodecUnderTest> {};

TEST_P(Fuzz, AnyBytesDecode) {
  const CodecUnderTest& codec = GetParam();
  std::mt19937_64 random(1);
  for (int round = rounds(); round > 0; --round) {
    const std::uint64_t count = random() % 700, block = 8 * (1 + random() % 40);
    auto scales = any_words<float>(codec.blocks(count, block), random);
    auto codes = any_bytes(codec.bytes(count, block), random);
    std::vector<float> expected(count), out(count);
    std::uint32_t wanted_nonfinite = 0, nonfinite = 0;
    const Payload payload = {scales.data(), codes.data()};
    const CodecKernels &theirs = reference().of(codec.codec), &ours = tested().of(codec.codec);
    theirs.decode({}, payload, count, block, Store::assign, expected.data(), &wanted_nonfinite);
    ours.decode({}, payload, count, block, Store::assign, out.data(), &nonfinite);
    ASSERT_EQ(nonfinite, wanted_nonfinite);
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(is_same(out[i], expected[i])) << "element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz, ::testing::ValuesIn(all_codecs()),
                         [](const auto& info) { return std::string(info.param.name); });

/// Returns how often each element is among the indices.
std::vector<int> times_named(const rules::TopK& shape, std::uint64_t count, const std::vector<std::uint32_t>& indices) {
  std::vector<int> times(count);
  for (std::uint64_t number = 0; number < shape.tiles(count); ++number) {
    const auto tile = rules::TopTile::of(shape, number, count);
    rules::IndexWords::of(tile.size, tile.kept)
        .for_each([&](std::uint64_t word) { return indices[tile.first_word + word]; },
                  [&](std::uint64_t, std::uint64_t index) { ++times[tile.first + index]; });
  }
  return times;
}

TEST(Fuzz, AnyWordsAreIndices) {
  std::mt19937_64 random(2);
  for (int round = rounds(); round > 0; --round) {
    const bool is_wide = round % 16 == 0;  // few of many elements are kept: their indices need not ascend
    const std::uint64_t count = random() % (is_wide ? 1U << 17 : 700);
    const std::uint64_t tile = is_wide ? 1U << 16 : 64 * (1 + random() % 10);
    const rules::TopK shape = {tile, 1 + random() % (is_wide ? 16 : tile)};
    const auto indices = any_words<std::uint32_t>(rules::index_words(shape, count), random);
    const auto sent = any_words<float>(shape.kept_in(count), random);
    std::vector<float> expected(count), out(count);
    std::uint32_t wanted_nonfinite = 0, nonfinite = 0;
    reference().scatter_top({}, sent.data(), indices.data(), count, shape, Store::assign, expected.data(),
                            &wanted_nonfinite);
    tested().scatter_top({}, sent.data(), indices.data(), count, shape, Store::assign, out.data(), &nonfinite);
    ASSERT_EQ(nonfinite, wanted_nonfinite);
    // an encoder never repeats an index; where these bytes do, any of the index's values may be stored
    const std::vector<int> times = times_named(shape, count, indices);
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(times[i] > 1 || is_same(out[i], expected[i])) << "element " << i;
    }
  }
}

/// From blocks and bytes that no encoder wrote, words are decoded, none behind the last, with the reference's verdict.
TEST(Fuzz, AnyBytesAreWords) {
  std::mt19937_64 random(3);
  for (int round = rounds(); round > 0; --round) {
    const std::uint64_t count = random() % 2500;
    std::vector<rules::WordBlock> blocks(rules::word_blocks(count));
    std::uint64_t bytes = 0;
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
      const std::uint64_t size = std::min(rules::kWordBlock, count - b * rules::kWordBlock);
      do {
        const auto bits = static_cast<std::uint8_t>(random() % 10);
        const auto escapes = static_cast<std::uint16_t>(random() % 4 == 0 ? random() % 1100 : 0);
        blocks[b] = {static_cast<std::uint8_t>(random()), bits, escapes};
      } while (!blocks[b].is_possible(size));
      bytes += blocks[b].bytes(size);
    }
    const auto packed = any_bytes(bytes, random);
    std::vector<std::uint16_t> expected(count), words(count);
    const bool wanted = reference().unpack_words(packed.data(), count, blocks.data(), expected.data());
    ASSERT_EQ(tested().unpack_words(packed.data(), count, blocks.data(), words.data()), wanted);
    ASSERT_EQ(words, expected);
  }
}

}  // namespace

}  // namespace octavo::conformance
