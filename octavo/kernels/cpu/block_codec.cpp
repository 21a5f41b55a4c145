// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/block_codec.h"

#include "octavo/kernels/cpu/codes.h"
#include "octavo/kernels/cpu/lane_sum.h"
#include "octavo/kernels/cpu/small_blocks.h"
#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

// Values are worked out into L1: a block or several small ones at a time, and a wide block chunk by chunk. Zeros fill
// up the last group. More values at a time would displace from L1 what is prefetched. Memory is prefetched where codes
// are made, which takes longest: a core that computes while memory is idle, and then waits for it, is slower by half.

constexpr std::uint64_t kWorkedOut = 512;

OCTAVO_INLINE std::uint32_t summary(rules::LargestMagnitude, const float* values, std::uint64_t count) {
  return largest_magnitude(values, count);
}

OCTAVO_INLINE float summary(rules::MeanMagnitude, const float* values, std::uint64_t count) {
  return lane_sum(values, count, magnitudes);
}

/// Where a chunk of values lies: elements [first, first + count) of the input, from element `offset` of its block of
/// `size` elements on.
struct Place {
  std::uint64_t first, count, offset, size;
};

/// Returns the dithers of a group, drawn into `memory`; null where codes are rounded to nearest.
template <class Rule>
OCTAVO_INLINE const float* draw_dithers(const EncodeInput& in, std::uint64_t first, float* memory) {
  if (!Rule::kDithers || !in.stochastic) return nullptr;
  for_random_bits(dither_key(in), in.first + first, kGroup,
                  [&](std::uint64_t j, std::uint32_t random) { memory[j] = rules::dither(random); });
  return memory;
}

/// Makes the codes of some values, and what they leave over. There are two loops, so that without dithers none are
/// read.
template <class Rule, std::uint64_t kCount>
OCTAVO_INLINE void make_codes(const float* values, const typename Rule::Scale& scale, const float* dithers,
                              std::uint32_t* words, float* left_over) {
  const auto with = [&](auto dither_of) {
    for (std::uint64_t j = 0; j < kCount; ++j) {
      words[j] = Rule::code(values[j], scale, dither_of(j));
      left_over[j] = rules::left_over<Rule>(values[j], words[j], scale);
    }
  };
  if (dithers) return with([&](std::uint64_t j) { return dithers[j]; });
  with([](std::uint64_t) { return rules::NoDither(); });
}

template <class Rule>
OCTAVO_INLINE void encode_chunk(const EncodeInput& in, const float* values, const Place& place,
                                const typename Rule::Scale& scale, std::uint8_t* codes, const ResidualOut& out) {
  for_each_group(place.count, [&](std::uint64_t i, auto count) {
    std::uint32_t words[kGroup];
    float left_over[kGroup], dithers[kGroup];
    prefetch(in, place.first + i);
    make_codes<Rule, kGroup>(values + i, scale, draw_dithers<Rule>(in, place.first + i, dithers), words, left_over);
    for (std::uint64_t j = count; j < kGroup; ++j) words[j] = 0;
    store_codes<Rule::kBits>(words, place.offset + i, count, place.size, codes);
    if (out.next) store_residual(out, in, place.first + i, left_over, count);
  });
}

/// Encodes a block whose values are worked out already, and its scale.
template <class Rule>
OCTAVO_INLINE void encode_block(const EncodeInput& in, float* values, std::uint64_t first, std::uint64_t size,
                                float* scale, std::uint8_t* codes, ResidualOut out) {
  typename Rule::Scale used = {};
  if constexpr (Rule::kHasScale) {
    typename Rule::Statistic statistic;
    statistic.add(summary(statistic, values, size));
    used = rules::used_scale<Rule>(statistic.value(size));
    *scale = rules::sent_scale<Rule>(statistic.value(size));
    if (!rules::is_finite(*scale)) std::memset(values, 0, size * sizeof *values);
    out.is_small = rules::leaves_small(statistic.bound());
  }
  encode_chunk<Rule>(in, values, {first, size, 0, size}, used, codes, out);
}

/// Encodes a block of several chunks. Its values are worked out twice; the second time up to 2^18 elements are still in
/// L2.
template <class Rule>
OCTAVO_INLINE void encode_wide_block(const EncodeInput& in, std::uint64_t first, std::uint64_t size, float* scale,
                                     std::uint8_t* codes, ResidualOut out) {
  // The largest magnitude does not depend on the chunks.
  constexpr bool kAnyChunks = std::is_same_v<typename Rule::Statistic, rules::LargestMagnitude>;
  constexpr std::uint64_t kChunk = kAnyChunks ? kWorkedOut : rules::kSummaryChunk;
  alignas(64) float values[kChunk] = {};
  typename Rule::Statistic statistic;
  for_each_block(size, kChunk, [&](std::uint64_t, std::uint64_t offset, std::uint64_t count) {
    work_out(in, first + offset, count, values);
    statistic.add(summary(statistic, values, count));
  });
  const auto used = rules::used_scale<Rule>(statistic.value(size));
  *scale = rules::sent_scale<Rule>(statistic.value(size));
  if (!rules::is_finite(*scale)) std::memset(values, 0, sizeof values);
  out.is_small = rules::leaves_small(statistic.bound());
  for_each_block(size, kChunk, [&](std::uint64_t, std::uint64_t offset, std::uint64_t count) {
    if (rules::is_finite(*scale)) work_out_prefetched(in, first + offset, count, values);
    encode_chunk<Rule>(in, values, {first + offset, count, offset, size}, used, codes, out);
  });
}

/// Encodes a group of small blocks.
template <class Rule, std::uint64_t kBlock>
OCTAVO_INLINE void encode_small_blocks(const EncodeInput& in, float* values, std::uint64_t first, float* scales,
                                       std::uint8_t* codes, ResidualOut out) {
  std::uint32_t words[kGroup];
  float left_over[kGroup], memory[kGroup];
  prefetch(in, first);
  const float* const dithers = draw_dithers<Rule>(in, first, memory);
  out.is_small = true;
  for (std::uint64_t i = 0; i < kGroup; i += kBlock) {
    typename Rule::Statistic statistic;
    statistic.add(small_summary<kBlock>(statistic, values + i));
    const auto scale = rules::used_scale<Rule>(statistic.value(kBlock));
    const float sent = rules::sent_scale<Rule>(statistic.value(kBlock));
    scales[i / kBlock] = sent;
    out.is_small &= rules::leaves_small(statistic.bound());
    if (!rules::is_finite(sent)) std::memset(values + i, 0, kBlock * sizeof *values);
    make_codes<Rule, kBlock>(values + i, scale, dithers ? dithers + i : nullptr, words + i, left_over + i);
  }
  store_small_codes<Rule::kBits, kBlock>(words, codes);
  if (out.next) store_residual(out, in, first, left_over, kGroup);
}

template <class Rule, std::uint64_t kBlock>
OCTAVO_INLINE bool decode_small_blocks(const float* scales, const std::uint8_t* codes, Store how, float* out) {
  std::uint8_t packed[Rule::kBits * kGroup / 8];
  float sent[kGroup], values[kGroup];
  bool all_finite = true;
  for (std::uint64_t i = 0; i < kGroup; i += kBlock) {
    const float scale = scales[i / kBlock];
    all_finite &= rules::has_numbers<Rule>(scale);
    for (std::uint64_t j = i; j < i + kBlock; ++j) sent[j] = scale;
  }
  for_codes<Rule::kBits>(load_small_codes<Rule::kBits, kBlock>(codes, packed), 0, kGroup, kGroup,
                         [&](std::uint64_t j, std::uint32_t code) { values[j] = Rule::decoded(code, sent[j]); });
  store_part(how, values, kGroup, out);
  return all_finite;
}

/// Carries into the sign bit when it is added to the magnitude_bits of what is not finite, and of nothing else.
constexpr std::uint32_t kCarryIntoSign = rules::kSignMask - rules::kInfinityBits;

template <class Rule>
OCTAVO_INLINE bool decode_block(const std::uint8_t* codes, std::uint64_t size, float scale, Store how, float* out) {
  std::uint32_t seen = 0;
  for_each_group(size, [&](std::uint64_t i, auto count) {
    float values[kGroup];
    for_codes<Rule::kBits>(codes, i, count, size,
                           [&](std::uint64_t j, std::uint32_t code) { values[j] = Rule::decoded(code, scale); });
    if constexpr (!Rule::kHasScale) {
      for (std::uint64_t j = 0; j < kGroup; ++j) seen |= rules::magnitude_bits(values[j]) + kCarryIntoSign;
    }
    store_part(how, values, count, out + i);
  });
  if constexpr (Rule::kHasScale) return rules::has_numbers<Rule>(scale);
  return (seen & rules::kSignMask) == 0;
}

}  // namespace

template <BlockCodec codec>
void encode_blocks(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  using Rule = RuleOf<codec>::type;
  const ResidualOut out = {next, choose_residual_store(count)};
  const auto codes_of = [&](std::uint64_t index) {
    return payload.codes + index * rules::code_bytes<Rule::kBits>(block);
  };
  if constexpr (Rule::kHasScale) {
    const std::uint64_t whole = count / kGroup * kGroup;
    const bool is_small =
        whole > 0 && with_small_block(block, [&](auto size) {
          alignas(64) float values[kWorkedOut];
          for (std::uint64_t first = 0; first < whole; first += kGroup) {
            if (first % kWorkedOut == 0) work_out_prefetched(in, first, smaller(kWorkedOut, whole - first), values);
            encode_small_blocks<Rule, size>(in, values + first % kWorkedOut, first, payload.scales + first / size,
                                            codes_of(first / size), out);
          }
        });
    if (is_small) {
      encode_blocks<codec>({}, in.from(whole), count - whole, block,
                           {payload.scales + whole / block, codes_of(whole / block)}, next ? next + whole : nullptr);
      return end_stream();
    }
    if (block > rules::kSummaryChunk) {
      for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
        encode_wide_block<Rule>(in, first, size, payload.scales + index, codes_of(index), out);
      });
      return end_stream();
    }
  } else {
    block = kWorkedOut;
  }
  alignas(64) float values[rules::kSummaryChunk];
  const std::uint64_t blocks_at_once = block % kGroup == 0 && block < kWorkedOut ? kWorkedOut / block : 1;
  for_each_block(count, blocks_at_once * block, [&](std::uint64_t turn, std::uint64_t start, std::uint64_t part) {
    work_out_prefetched(in, start, part, values);
    for_each_block(part, block, [&](std::uint64_t i, std::uint64_t at, std::uint64_t size) {
      const std::uint64_t index = turn * blocks_at_once + i;
      encode_block<Rule>(in, values + at, start + at, size, payload.scales + index, codes_of(index), out);
    });
  });
  end_stream();
}

template <BlockCodec codec>
void decode_blocks(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out,
                   std::uint32_t* nonfinite) {
  using Rule = RuleOf<codec>::type;
  const Store how = choose_store(wish, count);
  bool all_finite = true;
  if constexpr (Rule::kHasScale) {
    const std::uint64_t whole = count / kGroup * kGroup;
    const auto codes_of = [&](std::uint64_t index) {
      return payload.codes + index * rules::code_bytes<Rule::kBits>(block);
    };
    const bool is_small = whole > 0 && with_small_block(block, [&](auto size) {
                            for (std::uint64_t first = 0; first < whole; first += kGroup) {
                              all_finite &= decode_small_blocks<Rule, size>(payload.scales + first / size,
                                                                            codes_of(first / size), how, out + first);
                            }
                          });
    if (is_small) {
      report(all_finite, nonfinite);
      decode_blocks<codec>({}, {payload.scales + whole / block, codes_of(whole / block)}, count - whole, block, how,
                           out + whole, nonfinite);
      return end_stream();
    }
  } else {
    block = kWorkedOut;
  }
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const float scale = Rule::kHasScale ? payload.scales[index] : 1.0F;
    const std::uint8_t* codes = payload.codes + index * rules::code_bytes<Rule::kBits>(block);
    all_finite &= decode_block<Rule>(codes, size, scale, how, out + first);
  });
  report(all_finite, nonfinite);
  end_stream();
}

#define OCTAVO_INSTANTIATE(name, ...)                    \
  template EncodeKernel encode_blocks<BlockCodec::name>; \
  template DecodeKernel decode_blocks<BlockCodec::name>;
OCTAVO_BLOCK_CODECS(OCTAVO_INSTANTIATE)

}  // namespace octavo::cpu::OCTAVO_ISA
