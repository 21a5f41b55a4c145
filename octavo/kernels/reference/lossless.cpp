// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lossless.h"

#include <algorithm>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

namespace {

/// Calls visit(number of the block, its first word, its number of words) for all blocks.
template <class Visit>
void for_each_word_block(std::uint64_t count, Visit visit) {
  for (std::uint64_t number = 0; number < rules::word_blocks(count); ++number) {
    const std::uint64_t first = number * rules::kWordBlock;
    visit(number, first, std::min(rules::kWordBlock, count - first));
  }
}

/// Returns where plane number `plane` of a block's codes begins in its packed bytes; the plane of the highest bit is
/// the first.
std::uint64_t plane_at(std::uint64_t size, std::uint64_t plane) {
  return size + plane * rules::packed_sign_bytes(size);
}

}  // namespace

void measure_words(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks) {
  for_each_word_block(count, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    std::uint16_t histogram[256] = {};
    for (std::uint64_t i = 0; i < size; i += rules::word_stride(size)) {
      ++histogram[rules::symbol_of(words[first + i])];
    }
    const rules::WordBlock block = rules::likely_best(histogram, size);
    const auto escapes = std::count_if(words + first, words + first + size, [&](std::uint16_t word) {
      return block.code(rules::symbol_of(word)) == block.symbols();
    });
    blocks[number] = rules::with_escapes(block, static_cast<std::uint64_t>(escapes), size);
  });
}

void pack_words(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks, std::uint8_t* packed) {
  for_each_word_block(count, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    const rules::WordBlock block = blocks[number];
    std::fill_n(packed, block.bytes(size), std::uint8_t{0});
    std::uint8_t* escape = packed + plane_at(size, block.bits);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint8_t symbol = rules::symbol_of(words[first + i]);
      const std::uint32_t code = block.code(symbol);
      packed[i] = rules::rest_of(words[first + i]);
      for (std::uint64_t plane = 0; plane < block.bits; ++plane) {
        const std::uint32_t bit = code >> (block.bits - 1 - plane) & 1U;
        packed[plane_at(size, plane) + i / 8] |= static_cast<std::uint8_t>(bit << (7 - i % 8));
      }
      if (code == block.symbols()) *escape++ = symbol;
    }
    packed += block.bytes(size);
  });
}

bool unpack_words(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                  std::uint16_t* words) {
  bool fits = true;
  for_each_word_block(count, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    const rules::WordBlock block = blocks[number];
    const std::uint8_t* const escapes = packed + plane_at(size, block.bits);
    std::uint64_t escaped = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      std::uint32_t code = 0;
      for (std::uint64_t plane = 0; plane < block.bits; ++plane) {
        code = code << 1 | (packed[plane_at(size, plane) + i / 8] >> (7 - i % 8) & 1U);
      }
      auto symbol = static_cast<std::uint8_t>(block.base - code);
      if (code == block.symbols() && escaped++ < block.escapes) symbol = escapes[escaped - 1];
      words[first + i] = rules::word_of(symbol, packed[i]);
    }
    fits &= escaped == block.escapes;
    packed += block.bytes(size);
  });
  return fits;
}

}  // namespace octavo::reference
