// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lossless.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// Counts the symbols of those words of a block from which its codes are chosen. Four histograms take turns: in a
/// single one, a symbol that comes again at once would wait for its own count to be written.
OCTAVO_INLINE void count_symbols(const std::uint16_t* words, std::uint64_t count, std::uint16_t* histogram) {
  constexpr std::uint64_t kTurns = 4, kSymbols = 256;
  const std::uint64_t stride = rules::word_stride(count), step = kTurns * stride;
  std::uint16_t turns[kTurns][kSymbols] = {};
  std::uint64_t i = 0;
  for (; i + step <= count; i += step) {
    for (std::uint64_t turn = 0; turn < kTurns; ++turn) ++turns[turn][rules::symbol_of(words[i + turn * stride])];
  }
  for (; i < count; i += stride) ++turns[0][rules::symbol_of(words[i])];
  for (std::uint64_t s = 0; s < kSymbols; ++s) {
    histogram[s] = static_cast<std::uint16_t>(turns[0][s] + turns[1][s] + turns[2][s] + turns[3][s]);
  }
}

/// Returns the greatest code of a block, which is its escape where it has escapes.
OCTAVO_INLINE std::uint8_t greatest_code(const rules::WordBlock& block) {
  return static_cast<std::uint8_t>((1U << block.bits) - 1);
}

/// Makes the codes of a group. Everything is in bytes, because the compiler would otherwise widen the codes.
OCTAVO_INLINE void make_codes(const rules::WordBlock& block, const std::uint8_t* symbols, std::uint8_t* codes) {
  const std::uint8_t greatest = greatest_code(block), base = block.base;
  for (std::uint64_t j = 0; j < kGroup; ++j) {
    const auto code = static_cast<std::uint8_t>(base - symbols[j]);
    codes[j] = code < greatest ? code : greatest;
  }
}

/// Returns a mask of the codes of a group that are escapes; for a block that has escapes.
OCTAVO_INLINE std::uint64_t escapes_among(const std::uint8_t* codes, const rules::WordBlock& block) {
  const std::uint8_t escape = greatest_code(block);
  std::uint8_t flags[kGroup];
  for (std::uint64_t j = 0; j < kGroup; ++j) flags[j] = codes[j] == escape ? 128 : 0;
  return sign_mask(flags);
}

OCTAVO_INLINE std::uint64_t first_bits(std::uint64_t count) {
  return count < kGroup ? (std::uint64_t{1} << count) - 1 : ~std::uint64_t{0};
}

/// Splits up to a group of words, and zeros after them, into their two halves.
OCTAVO_INLINE void split(const std::uint16_t* words, std::uint64_t count, std::uint8_t* rests, std::uint8_t* symbols) {
  std::uint16_t group[kGroup] = {};
  std::memcpy(group, words, count * sizeof *group);
  for (std::uint64_t j = 0; j < kGroup; ++j) {
    rests[j] = rules::rest_of(group[j]);
    symbols[j] = rules::symbol_of(group[j]);
  }
}

OCTAVO_INLINE std::uint64_t count_escapes(const rules::WordBlock& block, const std::uint16_t* words,
                                          std::uint64_t count) {
  if (block.bits == 8) return 0;
  std::uint64_t found = 0;
  for_each_group(count, [&](std::uint64_t i, auto in_group) {
    std::uint8_t rests[kGroup], symbols[kGroup], codes[kGroup];
    split(words + i, in_group, rests, symbols);
    make_codes(block, symbols, codes);
    found += static_cast<std::uint64_t>(__builtin_popcountll(escapes_among(codes, block) & first_bits(in_group)));
  });
  return found;
}

/// Sets codes[j] to the code of `bits` bits of a group's element j; the planes are `plane_bytes` apart.
OCTAVO_INLINE void load_planes(const std::uint8_t* planes, std::uint64_t plane_bytes, std::uint32_t bits,
                               std::uint64_t count, std::uint8_t* codes) {
  std::memset(codes, 0, kGroup);
  for (std::uint32_t plane = 0; plane < bits; ++plane) {
    std::uint8_t bit[kGroup];
    expand_bits(load_signs(planes + plane * plane_bytes, count), static_cast<std::uint8_t>(1U << (bits - 1 - plane)),
                bit);
    for (std::uint64_t j = 0; j < kGroup; ++j) codes[j] |= bit[j];
  }
}

OCTAVO_INLINE void store_planes(const std::uint8_t* codes, std::uint64_t plane_bytes, std::uint32_t bits,
                                std::uint64_t count, std::uint8_t* planes) {
  std::uint8_t highest[kGroup];
  for (std::uint64_t j = 0; j < kGroup; ++j) highest[j] = static_cast<std::uint8_t>(codes[j] << (8 - bits));
  for (std::uint32_t plane = 0; plane < bits; ++plane) {
    const std::uint64_t packed = reverse_bits_in_bytes(sign_mask(highest));
    std::memcpy(planes + plane * plane_bytes, &packed, rules::packed_sign_bytes(count));
    for (std::uint64_t j = 0; j < kGroup; ++j) highest[j] = static_cast<std::uint8_t>(highest[j] + highest[j]);
  }
}

}  // namespace

void measure_words(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks) {
  for_each_block(count, rules::kWordBlock, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    std::uint16_t histogram[256];
    count_symbols(words + first, size, histogram);
    const rules::WordBlock block = rules::likely_best(histogram, size);
    blocks[number] = rules::with_escapes(block, count_escapes(block, words + first, size), size);
  });
}

void pack_words(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks, std::uint8_t* packed) {
  for_each_block(count, rules::kWordBlock, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    const rules::WordBlock block = blocks[number];
    const std::uint64_t plane_bytes = rules::packed_sign_bytes(size);
    std::uint8_t* const planes = packed + size;
    std::uint8_t* escape = planes + block.bits * plane_bytes;
    for_each_group(size, [&](std::uint64_t i, auto in_group) {
      std::uint8_t rests[kGroup], symbols[kGroup], codes[kGroup];
      split(words + first + i, in_group, rests, symbols);
      make_codes(block, symbols, codes);
      for (std::uint64_t j = in_group; j < kGroup; ++j) codes[j] = 0;
      std::memcpy(packed + i, rests, in_group);
      store_planes(codes, plane_bytes, block.bits, in_group, planes + i / 8);
      if (block.escapes == 0) return;
      for (std::uint64_t mask = escapes_among(codes, block); mask != 0; mask &= mask - 1) {
        *escape++ = symbols[__builtin_ctzll(mask)];
      }
    });
    packed += block.bytes(size);
  });
}

bool unpack_words(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                  std::uint16_t* words) {
  bool fits = true;
  for_each_block(count, rules::kWordBlock, [&](std::uint64_t number, std::uint64_t first, std::uint64_t size) {
    const rules::WordBlock block = blocks[number];
    const std::uint64_t plane_bytes = rules::packed_sign_bytes(size);
    const std::uint8_t* const planes = packed + size;
    const std::uint8_t* const escapes = planes + block.bits * plane_bytes;
    const std::uint8_t base = block.base;
    std::uint64_t escaped = 0;
    for_each_group(size, [&](std::uint64_t i, auto in_group) {
      std::uint8_t rests[kGroup] = {}, codes[kGroup], symbols[kGroup];
      std::memcpy(rests, packed + i, in_group);
      load_planes(planes + i / 8, plane_bytes, block.bits, in_group, codes);
      for (std::uint64_t j = 0; j < kGroup; ++j) symbols[j] = static_cast<std::uint8_t>(base - codes[j]);
      std::uint64_t mask = block.bits == 8 ? 0 : escapes_among(codes, block) & first_bits(in_group);
      for (; mask != 0; mask &= mask - 1) {
        if (escaped++ < block.escapes) symbols[__builtin_ctzll(mask)] = escapes[escaped - 1];
      }
      std::uint16_t group[kGroup];
      for (std::uint64_t j = 0; j < kGroup; ++j) group[j] = rules::word_of(symbols[j], rests[j]);
      std::memcpy(words + first + i, group, in_group * sizeof *group);
    });
    fits &= escaped == block.escapes;
    packed += block.bytes(size);
  });
  return fits;
}

}  // namespace octavo::cpu::OCTAVO_ISA
