// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "octavo/kernels/lanes/lane_codes.h"
#include "octavo/kernels/lanes/lane_sum.h"
#include "octavo/kernels/lanes/lanes.h"
#include "octavo/rules/block_codecs.h"

/// The loop over the blocks of a block codec (rules/block_codec.h), a chunk at a time. All lanes of a group call each
/// of these functions together.
namespace octavo::lanes {

/// Returns rules::random_bits(key, first + lane()). The elements of all lanes lie in one random group or in two that
/// follow each other, whose bases are then computed once and not by each lane.
inline std::uint32_t lane_random(std::uint64_t key, std::uint64_t first) {
  static_assert(kLanes <= rules::kRandomGroup);
  const std::uint64_t group = first / rules::kRandomGroup;
  const std::uint32_t base = rules::random_base(key, group), next_base = rules::random_base(key, group + 1);
  const std::uint32_t place = static_cast<std::uint32_t>(first % rules::kRandomGroup + lane());
  return place < rules::kRandomGroup ? rules::random_bits_at(base, place)
                                     : rules::random_bits_at(next_base, place - rules::kRandomGroup);
}

/// Returns the random bits of the lane's element. The device's compiler does not vectorise shared bases beside several
/// planes of codes: there each lane hashes for itself.
template <class Rule>
inline std::uint32_t random_of_lane(std::uint64_t key, std::uint64_t first) {
  constexpr bool kHasPlanes = Rule::kBits > 1 && rules::kLayout<Rule::kBits> == rules::Layout::planes;
  if constexpr (kHasPlanes) return rules::random_bits(key, first + lane());
  return lane_random(key, first);
}

template <class Rule, bool kStochastic>
inline float lane_dither(const EncodeInput& in, std::uint64_t first) {
  if constexpr (!kStochastic) return 0.0F;
  return rules::dither(random_of_lane<Rule>(dither_key(in), in.first + first));
}

/// Returns the summary of a chunk, from which the statistic of its block is made; the same in all lanes.
inline std::uint32_t summary(rules::LargestMagnitude, const EncodeInput& in, std::uint64_t first, std::uint64_t count) {
  std::uint32_t largest = 0;
  for_lanes(count, [&](std::uint64_t i, auto step) {
    if (step.inside()) largest = std::max(largest, rules::magnitude_bits(value_at(in, first + i + lane())));
  });
  return largest_of_lanes(largest);
}

inline float summary(rules::MeanMagnitude, const EncodeInput& in, std::uint64_t first, std::uint64_t count) {
  static_assert(kChunk == rules::kSummaryChunk);
  return lane_sum(count, [&](std::uint64_t i) { return rules::magnitude(value_at(in, first + i)); });
}

/// Encodes a chunk. `statistic`: that of its block; 0 where the codec has no scales.
template <class Rule, bool kStochastic>
inline void encode_chunk(const EncodeInput& in, const Chunk& chunk, float statistic, std::uint8_t* codes,
                         rules::Residual* next) {
  const bool finite = rules::is_sendable(statistic);
  typename Rule::Scale scale = {};
  if constexpr (Rule::kHasScale) scale = rules::used_scale<Rule>(statistic);
  for_lanes(chunk.count, [&](std::uint64_t i, auto step) {
    const std::uint64_t at = chunk.first + i + lane();
    const float loaded = step.inside() ? value_at(in, at) : 0.0F;
    const float value = finite ? loaded : 0.0F;
    const float dither = lane_dither<Rule, kStochastic>(in, chunk.first + i);
    const std::uint32_t code = step.inside() ? Rule::code(value, scale, dither) : 0;
    if (next && step.inside()) {
      const float left_over = rules::left_over<Rule>(value, code, scale);
      const std::uint32_t random = random_of_lane<Rule>(in.rounding_key, in.first + chunk.first + i);
      next[at] = rules::to_residual(left_over, random);
    }
    store_codes<Rule::kBits>(code, step, chunk.offset + i, chunk.block_count, codes);
  });
}

/// Decodes a chunk. Codecs without scales set `nonfinite` here, value by value.
template <class Rule>
inline void decode_chunk(const Chunk& chunk, float scale, const std::uint8_t* codes, Store how, float* out,
                         std::uint32_t* nonfinite) {
  for_lanes(chunk.count, [&](std::uint64_t i, auto step) {
    const std::uint32_t code = load_codes<Rule::kBits>(step, chunk.offset + i, chunk.block_count, codes);
    const float value = Rule::decoded(code, scale);
    if (!step.inside()) return;
    if (!Rule::kHasScale && nonfinite && !rules::is_finite(value)) *nonfinite = 1;
    store(how, value, out[chunk.first + i + lane()]);
  });
}

template <class Rule>
inline std::uint8_t* codes_of(const Blocks& blocks, std::uint64_t number) {
  return blocks.payload.codes + number * rules::code_bytes<Rule::kBits>(blocks.block);
}

template <class Rule>
inline float scale_of(const Blocks& blocks, std::uint64_t number, std::uint32_t* nonfinite) {
  if constexpr (Rule::kHasScale) {
    const float scale = blocks.payload.scales[number];
    if (nonfinite && !rules::has_numbers<Rule>(scale)) *nonfinite = 1;
    return scale;
  }
  return 1.0F;
}

/// Calls body(number, chunk) for the blocks that this group takes, each of which is one chunk.
template <class Body>
inline void for_blocks(const Blocks& blocks, Body body) {
  const std::uint64_t from = group_index() * blocks.blocks_of_group;
  const std::uint64_t to = std::min(from + blocks.blocks_of_group, blocks.blocks);
  for (std::uint64_t number = from; number < to; ++number) {
    const std::uint64_t first = number * blocks.block, count = std::min(blocks.block, blocks.count - first);
    body(number, Chunk{first, count, 0, count});
  }
}

/// Encodes blocks of one chunk. A group takes some of them, and reads each twice while it is in the cache.
template <class Rule, bool kStochastic>
inline void encode_blocks(const EncodeInput& in, const Blocks& blocks, rules::Residual* next) {
  for_blocks(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    float of_block = 0.0F;
    if constexpr (Rule::kHasScale) {
      typename Rule::Statistic statistic;
      statistic.add(summary(statistic, in, chunk.first, chunk.count));
      of_block = statistic.value(chunk.count);
      blocks.payload.scales[number] = rules::sent_scale<Rule>(of_block);
    }
    encode_chunk<Rule, kStochastic>(in, chunk, of_block, codes_of<Rule>(blocks, number), next);
  });
}

// Wider blocks: a group takes one chunk, and encoding takes four kernels. Between the kernels a chunk's summary is
// stored where its codes will be, and a block's statistic where its scale will be. The last chunk of a block may have
// no room for a summary, so its summary is not stored.

template <class Rule>
inline std::uint8_t* room_of(const Blocks& blocks, std::uint64_t number, const Chunk& chunk) {
  return codes_of<Rule>(blocks, number) + rules::code_bytes<Rule::kBits>(chunk.offset);
}

/// Calls body(block number, chunk) for this group's chunk.
template <class Body>
inline void with_chunk(const Blocks& blocks, Body body) {
  const std::uint64_t of_block = blocks.chunks_of_block, number = group_index() / of_block;
  const Chunk chunk = blocks.chunk(number, group_index() % of_block);
  if (chunk.count > 0) body(number, chunk);
}

template <class Rule>
inline void summarize_chunks(const EncodeInput& in, const Blocks& blocks) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    if (chunk.is_last()) return;
    const auto of_chunk = summary(typename Rule::Statistic(), in, chunk.first, chunk.count);
    __builtin_memcpy(room_of<Rule>(blocks, number, chunk), &of_chunk, sizeof of_chunk);
  });
}

/// Makes a block's statistic of the summaries of its chunks. A group takes one block.
template <class Rule>
inline void add_summaries(const EncodeInput& in, const Blocks& blocks) {
  typename Rule::Statistic statistic;
  const std::uint64_t number = group_index();
  std::uint64_t block_count = 0;
  for (std::uint64_t i = 0; i < blocks.chunks_of_block; ++i) {
    const Chunk chunk = blocks.chunk(number, i);
    if (chunk.count == 0) break;
    typename Rule::Statistic::Summary of_chunk;
    if (chunk.is_last()) {
      of_chunk = summary(statistic, in, chunk.first, chunk.count);
    } else {
      __builtin_memcpy(&of_chunk, room_of<Rule>(blocks, number, chunk), sizeof of_chunk);
    }
    statistic.add(of_chunk);
    block_count = chunk.block_count;
  }
  blocks.payload.scales[number] = statistic.value(block_count);
}

template <class Rule, bool kStochastic>
inline void encode_chunks(const EncodeInput& in, const Blocks& blocks, rules::Residual* next) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    encode_chunk<Rule, kStochastic>(in, chunk, blocks.payload.scales[number], codes_of<Rule>(blocks, number), next);
  });
}

/// Replaces the statistic of a block by the scale that is sent. An item takes one block.
template <class Rule>
inline void write_scales(const Blocks& blocks) {
  const std::uint64_t number = item_index();
  if (number >= blocks.blocks) return;
  float& scale = blocks.payload.scales[number];
  scale = rules::sent_scale<Rule>(scale);
}

template <class Rule>
inline void decode_blocks(const Blocks& blocks, Store how, float* out, std::uint32_t* nonfinite) {
  for_blocks(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    const float scale = scale_of<Rule>(blocks, number, nonfinite);
    decode_chunk<Rule>(chunk, scale, codes_of<Rule>(blocks, number), how, out, nonfinite);
  });
}

template <class Rule>
inline void decode_chunks(const Blocks& blocks, Store how, float* out, std::uint32_t* nonfinite) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    const float scale = scale_of<Rule>(blocks, number, nonfinite);
    decode_chunk<Rule>(chunk, scale, codes_of<Rule>(blocks, number), how, out, nonfinite);
  });
}

}  // namespace octavo::lanes
