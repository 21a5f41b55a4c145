// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "octavo/kernels/sycl/device.h"
#include "octavo/kernels/sycl/span.h"

/// How a codec with scales goes over its blocks, a chunk at a time.
///
/// A codec is a struct of types and static functions; all lanes of a group call the functions together.
/// - Summary summarize(in, first, count): what a chunk says of its block's scale; the same in all lanes.
/// - Total: add(Summary) takes a block's chunks, in order; bits(block_count) is what a Scale is made of.
/// - Scale(bits): `sent` is what crosses the wire.
/// - code_bytes(count): of a block.
/// - encode(in, chunk, Scale, codes, next)
/// - decode(chunk, sent scale, codes, how, out)
namespace octavo::sycl_code {

using sycl_span::Blocks, sycl_span::Chunk, sycl_span::kChunk;

/// residual_at(in, first + lane(), left_over) for all lanes together: they lie in one random group or in two that
/// follow each other, whose bases are then computed once and not by each lane.
inline rules::Residual lane_residual(const EncodeInput& in, std::uint64_t first, float left_over) {
  static_assert(kLanes <= rules::kRandomGroup);
  const std::uint64_t begin = in.first + first, group = begin / rules::kRandomGroup;
  const std::uint32_t base = rules::random_base(in.rounding_key, group);
  const std::uint32_t next_base = rules::random_base(in.rounding_key, group + 1);
  const std::uint32_t place = static_cast<std::uint32_t>(begin % rules::kRandomGroup + lane());
  const std::uint32_t random = place < rules::kRandomGroup
                                   ? rules::random_bits_at(base, place)
                                   : rules::random_bits_at(next_base, place - rules::kRandomGroup);
  return rules::to_residual(left_over, random);
}

template <class Codec>
inline std::uint8_t* codes_of(const Blocks& blocks, std::uint64_t number) {
  return blocks.payload.codes + number * Codec::code_bytes(blocks.block);
}

/// Calls body(number, chunk) for the blocks of one chunk that this group takes.
template <class Body>
inline void for_blocks(const Blocks& blocks, Body body) {
  const std::uint64_t from = group_index() * blocks.blocks_of_group;
  const std::uint64_t to = std::min(from + blocks.blocks_of_group, blocks.blocks);
  for (std::uint64_t number = from; number < to; ++number) {
    const std::uint64_t first = number * blocks.block, count = std::min(blocks.block, blocks.count - first);
    body(number, Chunk{first, count, 0, count});
  }
}

/// Blocks of one chunk: a group takes some, and reads each twice while it is in the cache.
template <class Codec>
inline void encode_blocks(const EncodeInput& in, const Blocks& blocks, rules::Residual* next) {
  for_blocks(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    typename Codec::Total total;
    total.add(Codec::summarize(in, chunk.first, chunk.count));
    const typename Codec::Scale scale(total.bits(chunk.count));
    blocks.payload.scales[number] = scale.sent;
    Codec::encode(in, chunk, scale, codes_of<Codec>(blocks, number), next);
  });
}

// Wider blocks: a group a chunk, in four kernels. Between them a chunk's summary waits where its codes will be, and
// a block's total where its scale will be. The last chunk of a block may have no room for a summary: it keeps none.

template <class Codec>
inline std::uint8_t* room_of(const Blocks& blocks, std::uint64_t number, const Chunk& chunk) {
  return codes_of<Codec>(blocks, number) + Codec::code_bytes(chunk.offset);
}

/// Calls body(block number, chunk) for this group's chunk.
template <class Body>
inline void with_chunk(const Blocks& blocks, Body body) {
  const std::uint64_t of_block = blocks.chunks_of_block, number = group_index() / of_block;
  const Chunk chunk = blocks.chunk(number, group_index() % of_block);
  if (chunk.count > 0) body(number, chunk);
}

template <class Codec>
inline void summarize_chunks(const EncodeInput& in, const Blocks& blocks) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    if (chunk.is_last()) return;
    const auto summary = Codec::summarize(in, chunk.first, chunk.count);
    __builtin_memcpy(room_of<Codec>(blocks, number, chunk), &summary, sizeof summary);
  });
}

/// A group a block.
template <class Codec>
inline void add_summaries(const EncodeInput& in, const Blocks& blocks) {
  typename Codec::Total total;
  const std::uint64_t number = group_index();
  std::uint64_t block_count = 0;
  for (std::uint64_t i = 0; i < blocks.chunks_of_block; ++i) {
    const Chunk chunk = blocks.chunk(number, i);
    if (chunk.count == 0) break;
    typename Codec::Summary summary;
    if (chunk.is_last()) {
      summary = Codec::summarize(in, chunk.first, chunk.count);
    } else {
      __builtin_memcpy(&summary, room_of<Codec>(blocks, number, chunk), sizeof summary);
    }
    total.add(summary);
    block_count = chunk.block_count;
  }
  const std::uint32_t bits = total.bits(block_count);
  __builtin_memcpy(blocks.payload.scales + number, &bits, sizeof bits);
}

inline std::uint32_t kept_bits(const Blocks& blocks, std::uint64_t number) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, blocks.payload.scales + number, sizeof bits);
  return bits;
}

template <class Codec>
inline void encode_chunks(const EncodeInput& in, const Blocks& blocks, rules::Residual* next) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    Codec::encode(in, chunk, typename Codec::Scale(kept_bits(blocks, number)), codes_of<Codec>(blocks, number), next);
  });
}

/// An item a block.
template <class Codec>
inline void write_scales(const Blocks& blocks) {
  const std::uint64_t number = item().get_global_id(0);
  if (number < blocks.blocks) {
    blocks.payload.scales[number] = typename Codec::Scale(kept_bits(blocks, number)).sent;
  }
}

template <class Codec>
inline void decode_blocks(const Blocks& blocks, Store how, float* out) {
  for_blocks(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    Codec::decode(chunk, blocks.payload.scales[number], codes_of<Codec>(blocks, number), how, out);
  });
}

template <class Codec>
inline void decode_chunks(const Blocks& blocks, Store how, float* out) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    Codec::decode(chunk, blocks.payload.scales[number], codes_of<Codec>(blocks, number), how, out);
  });
}

}  // namespace octavo::sycl_code

#define OCTAVO_BLOCKS_PARAMETERS                                                                             \
  std::uint64_t count, std::uint64_t block, float *scales, std::uint8_t *codes, std::uint64_t blocks_of_all, \
      std::uint64_t chunks_of_block, std::uint64_t blocks_of_group
#define OCTAVO_BLOCKS \
  octavo::sycl_span::Blocks { count, block, {scales, codes}, blocks_of_all, chunks_of_block, blocks_of_group }

/// The kernels of a codec, by the names that block_codec.cpp launches. What an input has is known when its encoder is
/// compiled, as bits of OCTAVO_INPUT_HAS; a program without it has the decoders.
#if defined(OCTAVO_INPUT_HAS)

namespace octavo::sycl_code {

/// The input without the branches on what it has.
inline EncodeInput known(EncodeInput in) {
  using namespace sycl_span;
  in.residual = OCTAVO_INPUT_HAS & kHasResidual ? assume_there(in.residual) : nullptr;
  in.momentum = OCTAVO_INPUT_HAS & kHasMomentum ? assume_there(in.momentum) : nullptr;
  in.others = OCTAVO_INPUT_HAS & kHasOthers ? assume_there(in.others) : nullptr;
  return in;
}
inline rules::Residual* known(rules::Residual* next) {
  return OCTAVO_INPUT_HAS & sycl_span::kWantsNext ? assume_there(next) : nullptr;
}

}  // namespace octavo::sycl_code

#define OCTAVO_BLOCK_ENCODER(name, Codec)                                                              \
  OCTAVO_KERNEL name##_encode_blocks(OCTAVO_INPUT_PARAMETERS, OCTAVO_BLOCKS_PARAMETERS,                \
                                     octavo::rules::Residual* next) {                                  \
    using namespace octavo::sycl_code;                                                                 \
    encode_blocks<Codec>(known(OCTAVO_INPUT), OCTAVO_BLOCKS, known(next));                             \
  }                                                                                                    \
  OCTAVO_KERNEL name##_summarize_chunks(OCTAVO_INPUT_PARAMETERS, OCTAVO_BLOCKS_PARAMETERS) {           \
    octavo::sycl_code::summarize_chunks<Codec>(octavo::sycl_code::known(OCTAVO_INPUT), OCTAVO_BLOCKS); \
  }                                                                                                    \
  OCTAVO_KERNEL name##_add_summaries(OCTAVO_INPUT_PARAMETERS, OCTAVO_BLOCKS_PARAMETERS) {              \
    octavo::sycl_code::add_summaries<Codec>(octavo::sycl_code::known(OCTAVO_INPUT), OCTAVO_BLOCKS);    \
  }                                                                                                    \
  OCTAVO_KERNEL name##_encode_chunks(OCTAVO_INPUT_PARAMETERS, OCTAVO_BLOCKS_PARAMETERS,                \
                                     octavo::rules::Residual* next) {                                  \
    using namespace octavo::sycl_code;                                                                 \
    encode_chunks<Codec>(known(OCTAVO_INPUT), OCTAVO_BLOCKS, known(next));                             \
  }                                                                                                    \
  OCTAVO_KERNEL name##_write_scales(OCTAVO_BLOCKS_PARAMETERS) { octavo::sycl_code::write_scales<Codec>(OCTAVO_BLOCKS); }
#define OCTAVO_BLOCK_DECODER(name, Codec)

#else

#define OCTAVO_BLOCK_ENCODER(name, Codec)
#define OCTAVO_BLOCK_DECODER(name, Codec)                                                       \
  OCTAVO_KERNEL name##_decode_blocks(OCTAVO_BLOCKS_PARAMETERS, octavo::Store how, float* out) { \
    octavo::sycl_code::decode_blocks<Codec>(OCTAVO_BLOCKS, how, out);                           \
  }                                                                                             \
  OCTAVO_KERNEL name##_decode_chunks(OCTAVO_BLOCKS_PARAMETERS, octavo::Store how, float* out) { \
    octavo::sycl_code::decode_chunks<Codec>(OCTAVO_BLOCKS, how, out);                           \
  }

#endif
