// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lossless.h"

#include <gtest/gtest.h>

#include "octavo/rules/bf16.h"
#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

using Words = std::vector<std::uint16_t>;

/// Returns the bytes of that many words, without the blocks' descriptions.
std::uint64_t bytes_of_blocks(const std::vector<rules::WordBlock>& blocks, std::uint64_t count) {
  std::uint64_t bytes = 0;
  for (std::uint64_t b = 0; b < blocks.size(); ++b) {
    bytes += blocks[b].bytes(std::min(rules::kWordBlock, count - b * rules::kWordBlock));
  }
  return bytes;
}

/// Packs and unpacks with the back end under test and with the reference. Returns the bytes, including the blocks'
/// descriptions.
std::uint64_t pack_as_reference(const Words& words, std::uint64_t offset) {
  const std::uint64_t count = words.size() - offset;
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset);
  const std::uint16_t* const from = words.data() + offset;
  std::vector<rules::WordBlock> wanted_blocks(rules::word_blocks(count)), blocks(wanted_blocks.size());
  reference().measure_words(from, count, wanted_blocks.data());
  tested().measure_words(from, count, blocks.data());
  for (std::uint64_t b = 0; b < blocks.size(); ++b) {
    EXPECT_EQ(blocks[b].base, wanted_blocks[b].base);
    EXPECT_EQ(blocks[b].bits, wanted_blocks[b].bits);
    EXPECT_EQ(blocks[b].escapes, wanted_blocks[b].escapes);
  }
  const std::uint64_t bytes = bytes_of_blocks(wanted_blocks, count);
  Guarded<std::uint8_t> wanted(bytes), packed(bytes, offset);
  reference().pack_words(from, count, wanted_blocks.data(), wanted.data());
  tested().pack_words(from, count, blocks.data(), packed.data());
  packed.expect_same_bits(wanted);
  packed.expect_untouched_around();

  Guarded<std::uint16_t> unpacked(count, offset);
  EXPECT_TRUE(tested().unpack_words(packed.data(), count, blocks.data(), unpacked.data()));
  EXPECT_TRUE(std::equal(from, from + count, unpacked.data())) << "the words are others";
  unpacked.expect_untouched_around();
  return bytes + blocks.size() * sizeof(rules::WordBlock);
}

Words bf16_of(const std::vector<float>& values) {
  Words words;
  for (const float value : values) words.push_back(rules::to_bf16(value).bits);
  return words;
}

Words normal_words(std::uint64_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return bf16_of(values);
}

TEST(Lossless, EqualsReferenceAndGivesTheWordsBack) {
  std::mt19937 random(3);
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) {
      pack_as_reference(bf16_of(finite_values(count + offset, 5)), offset);
      pack_as_reference(bf16_of(any_values(count + offset, 6)), offset);
      pack_as_reference(normal_words(count + offset), offset);
      Words noise(count + offset), few(count + offset, 0x8000);
      for (std::uint16_t& word : noise) word = static_cast<std::uint16_t>(random());
      for (std::uint16_t& word : few) word ^= static_cast<std::uint16_t>((random() & 3U) << 7);
      pack_as_reference(noise, offset);
      pack_as_reference(few, offset);
    }
  }
}

TEST(Lossless, EveryWordThereIsComesBack) {
  Words all(1U << 16);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  pack_as_reference(all, 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  const std::uint64_t bytes = pack_as_reference(all, 0);
  // the words are stored raw
  EXPECT_EQ(bytes, 2 * all.size() + all.size() / rules::kWordBlock * sizeof(rules::WordBlock));
}

TEST(Lossless, WhatIsSmallerIsKnown) {
  constexpr std::uint64_t kCount = 1U << 18;
  const auto share = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (2.0 * kCount); };
  EXPECT_NEAR(share(pack_as_reference(normal_words(kCount), 0)), 0.70, 0.01);
  EXPECT_NEAR(share(pack_as_reference(Words(kCount), 0)), 0.565, 0.001);
}

/// The format is that of docs/formats.md, byte by byte.
TEST(Lossless, BytesOfABlock) {
  // exponents 127 (8 times), 126 (once), 3 (once): one bit for each 127, and a byte for each of the other two
  const Words words = {0x3F80, 0xBF81, 0x3FFF, 0x3F80, 0x3F00, 0x3F80, 0x3F80, 0x3F80, 0x01AA, 0x3F80};
  rules::WordBlock block;
  tested().measure_words(words.data(), words.size(), &block);
  EXPECT_EQ(block.base, 127);
  EXPECT_EQ(block.bits, 1);
  EXPECT_EQ(block.escapes, 2);
  const std::vector<std::uint8_t> expected = {0x00,        0x81,
                                              0x7F,        0x00,
                                              0x00,        0x00,
                                              0x00,        0x00,
                                              0x2A,        0x00,         // rests
                                              0b0000'1000, 0b1000'0000,  // codes
                                              126,         3};           // escapes
  ASSERT_EQ(block.bytes(words.size()), expected.size());
  std::vector<std::uint8_t> packed(expected.size());
  tested().pack_words(words.data(), words.size(), &block, packed.data());
  EXPECT_EQ(packed, expected);
}

}  // namespace

}  // namespace octavo::conformance
