// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/portable.h"
#include "octavo/rules/sign_bits.h"

/// How words of 16 bits (bfloat16 or float16 values) are packed without loss.
///
/// A word consists of a rest and a symbol. The rest is its sign and its 7 lowest bits, which are as good as random. The
/// symbol is the 8 bits between them: in a bfloat16 the exponent, of which a gradient has few frequent values. Words
/// are packed in blocks, and each block has its own number of bits per code. Code c stands for the symbol base - c. The
/// greatest code is an escape, whose symbol follows in a byte. Codes of 8 bits have no escape; a block that does not
/// compress is sent with these.
namespace octavo::rules {

/// The number of words of a block; the last one may have fewer.
inline constexpr std::uint64_t kWordBlock = 1024;

/// The header of a packed block. The headers of all blocks come before the packed bytes of the first block.
struct WordBlock {
  std::uint8_t base = 0;      // the greatest symbol that has a code
  std::uint8_t bits = 8;      // bits of a code, 1 to 8
  std::uint16_t escapes = 0;  // number of words whose symbol has no code

  /// Returns the packed bytes of a block of `count` words without its header: the rests, a plane for each bit of a
  /// code, and the symbols of escapes.
  OCTAVO_RULE std::uint64_t bytes(std::uint64_t count) const {
    return count + bits * packed_sign_bytes(count) + escapes;
  }
  /// Returns the number of codes that stand for symbols, which is also the code of an escape.
  OCTAVO_RULE std::uint32_t symbols() const { return bits == 8 ? 256 : (1U << bits) - 1; }
  /// Whether an encoder may have made this header for a block of `count` words.
  OCTAVO_RULE bool is_possible(std::uint64_t count) const {
    return bits >= 1 && bits <= 8 && escapes <= (bits == 8 ? 0 : count);
  }
  OCTAVO_RULE std::uint32_t code(std::uint32_t symbol) const {
    const std::uint32_t code = (base - symbol) & 255U;
    return code < symbols() ? code : symbols();
  }
};
static_assert(sizeof(WordBlock) == 4);

OCTAVO_RULE constexpr std::uint64_t word_blocks(std::uint64_t count) { return (count + kWordBlock - 1) / kWordBlock; }

OCTAVO_RULE std::uint8_t symbol_of(std::uint16_t word) { return static_cast<std::uint8_t>(word >> 7); }
OCTAVO_RULE std::uint8_t rest_of(std::uint16_t word) {
  return static_cast<std::uint8_t>((word & 127) | (word >> 8 & 128));
}
OCTAVO_RULE std::uint16_t word_of(std::uint8_t symbol, std::uint8_t rest) {
  const std::uint16_t wide = rest;
  return static_cast<std::uint16_t>((wide & 128) << 8 | symbol << 7 | (wide & 127));
}

/// Returns the stride of the words from which a block's codes are chosen: every fourth word of a whole block, and every
/// word of a shorter one.
OCTAVO_RULE constexpr std::uint64_t word_stride(std::uint64_t count) { return count == kWordBlock ? 4 : 1; }

/// Returns the codes for a block of `count` words. `histogram[s]`: how many of the words that were read have symbol s.
/// The codes are those that take the fewest bytes if the other words are like these; of equal ones those with more
/// bits, and of these the ones with the least base. The caller must count their escapes.
OCTAVO_RULE WordBlock likely_best(const std::uint16_t* histogram, std::uint64_t count) {
  constexpr std::uint32_t kSymbols = 256, kBelow = 128;  // a base may be less than the number of codes
  std::uint16_t before[kBelow + kSymbols + 1];           // how many words have a lesser symbol
  for (std::uint32_t s = 0; s <= kBelow; ++s) before[s] = 0;
  for (std::uint32_t s = 0; s < kSymbols; ++s) {
    before[kBelow + s + 1] = static_cast<std::uint16_t>(before[kBelow + s] + histogram[s]);
  }
  const std::uint64_t read = before[kBelow + kSymbols], stride = word_stride(count);
  const auto inside = [&](std::uint32_t base, std::uint32_t codes) {
    return static_cast<std::uint16_t>(before[kBelow + base + 1] - before[kBelow + base + 1 - codes]);
  };
  WordBlock best;
  std::uint64_t least = best.bytes(count);
  std::uint16_t covered = 0;
  for (std::uint8_t bits = 7; bits >= 1; --bits) {
    const WordBlock block = {0, bits, 0};
    const std::uint32_t codes = block.symbols();
    std::uint16_t most = 0;
    for (std::uint32_t base = 0; base < kSymbols; ++base) {
      const std::uint16_t those = inside(base, codes);
      most = those > most ? those : most;
    }
    const std::uint64_t bytes = block.bytes(count) + stride * (read - most);
    if (bytes >= least) continue;
    best = block;
    least = bytes;
    covered = most;
  }
  while (best.bits < 8 && inside(best.base, best.symbols()) != covered) ++best.base;
  return best;
}

/// Returns the block with its number of escapes, or a block of 8-bit codes where the escapes make it no smaller than
/// that.
OCTAVO_RULE WordBlock with_escapes(WordBlock block, std::uint64_t escapes, std::uint64_t count) {
  block.escapes = static_cast<std::uint16_t>(escapes);
  return block.bytes(count) < WordBlock().bytes(count) ? block : WordBlock();
}

}  // namespace octavo::rules
