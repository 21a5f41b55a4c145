// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/block_codec.h"

#include <algorithm>
#include <cstring>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

namespace {

/// Calls visit(index, first, count) for every block.
template <class Visit>
void for_each_block(std::uint64_t count, std::uint64_t block, Visit visit) {
  for (std::uint64_t first = 0, index = 0; first < count; first += block, ++index) {
    visit(index, first, std::min(block, count - first));
  }
}

template <class ValueAt>
std::uint32_t summary(rules::LargestMagnitude, std::uint64_t count, ValueAt value) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) largest = std::max(largest, rules::magnitude_bits(value(i)));
  return largest;
}

template <class ValueAt>
float summary(rules::MeanMagnitude, std::uint64_t count, ValueAt value) {
  return rules::lane_sum(count, [&](std::uint64_t i) { return rules::magnitude(value(i)); });
}

/// Returns the statistic of a block; 0 for a codec without scales.
template <class Rule>
float statistic_of(const EncodeInput& in, std::uint64_t first, std::uint64_t count) {
  if constexpr (Rule::kHasScale) {
    typename Rule::Statistic statistic;
    for_each_block(count, rules::kSummaryChunk, [&](std::uint64_t, std::uint64_t chunk, std::uint64_t size) {
      statistic.add(summary(statistic, size, [&](std::uint64_t i) { return value_at(in, first + chunk + i); }));
    });
    return statistic.value(count);
  } else {
    return 0.0F;
  }
}

template <class Rule>
float dither_at(const EncodeInput& in, std::uint64_t i) {
  if (!Rule::kDithers || !in.stochastic) return 0.0F;
  return rules::dither(rules::random_bits(dither_key(in), in.first + i));
}

/// Writes the code of element i of a block of `size` elements. Must be called in order, from element 0 on.
template <unsigned kBits>
void store_code(std::uint32_t code, std::uint64_t i, std::uint64_t size, std::uint8_t* codes) {
  switch (rules::kLayout<kBits>) {
    case rules::Layout::words: std::memcpy(codes + kBits / 8 * i, &code, kBits / 8); return;
    case rules::Layout::nibbles:
      codes[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : codes[i / 2] | code);
      return;
    case rules::Layout::planes:
      for (unsigned plane = 0; plane < kBits; ++plane) {
        std::uint8_t& byte = codes[plane * rules::packed_sign_bytes(size) + i / 8];
        const auto bit = static_cast<std::uint8_t>(code >> (kBits - 1 - plane) & 1U);
        byte = static_cast<std::uint8_t>((i % 8 == 0 ? 0 : byte) | rules::place_sign_bit(bit, i));
      }
  }
}

template <unsigned kBits>
std::uint32_t load_code(std::uint64_t i, std::uint64_t size, const std::uint8_t* codes) {
  std::uint32_t code = 0;
  switch (rules::kLayout<kBits>) {
    case rules::Layout::words: std::memcpy(&code, codes + kBits / 8 * i, kBits / 8); break;
    case rules::Layout::nibbles: code = i % 2 == 0 ? codes[i / 2] >> 4U : codes[i / 2] & 15U; break;
    case rules::Layout::planes:
      for (unsigned plane = 0; plane < kBits; ++plane) {
        code = code << 1U | rules::is_positive(codes[plane * rules::packed_sign_bytes(size) + i / 8], i);
      }
  }
  return code;
}

}  // namespace

template <BlockCodec codec>
void encode_blocks(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  using Rule = RuleOf<codec>::type;
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const float statistic = statistic_of<Rule>(in, first, size);
    const bool finite = rules::is_sendable(statistic);
    typename Rule::Scale scale = {};
    if constexpr (Rule::kHasScale) {
      scale = rules::used_scale<Rule>(statistic);
      payload.scales[index] = rules::sent_scale<Rule>(statistic);
    }
    std::uint8_t* codes = payload.codes + index * rules::code_bytes<Rule::kBits>(block);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = finite ? value_at(in, first + i) : 0.0F;
      const std::uint32_t code = Rule::code(value, scale, dither_at<Rule>(in, first + i));
      store_code<Rule::kBits>(code, i, size, codes);
      if (next) next[first + i] = residual_at(in, first + i, rules::left_over<Rule>(value, code, scale));
    }
  });
}

template <BlockCodec codec>
void decode_blocks(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out,
                   std::uint32_t* nonfinite) {
  using Rule = RuleOf<codec>::type;
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const float scale = Rule::kHasScale ? payload.scales[index] : 1.0F;
    const std::uint8_t* codes = payload.codes + index * rules::code_bytes<Rule::kBits>(block);
    bool has_numbers = true;
    if constexpr (Rule::kHasScale) has_numbers = rules::has_numbers<Rule>(scale);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = Rule::decoded(load_code<Rule::kBits>(i, size, codes), scale);
      if (!Rule::kHasScale) has_numbers &= rules::is_finite(value);
      store(how, value, out[first + i]);
    }
    report(has_numbers, nonfinite);
  });
}

#define OCTAVO_INSTANTIATE(name, ...)                    \
  template EncodeKernel encode_blocks<BlockCodec::name>; \
  template DecodeKernel decode_blocks<BlockCodec::name>;
OCTAVO_BLOCK_CODECS(OCTAVO_INSTANTIATE)

}  // namespace octavo::reference
