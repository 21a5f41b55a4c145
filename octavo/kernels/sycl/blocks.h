// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "octavo/kernels/sycl/device.h"
#include "octavo/kernels/sycl/span.h"

/// How a codec with scales goes over its blocks, a chunk at a time.
///
/// A codec is a struct of static functions, which all lanes of a group call together:
///   Summary summarize(in, first, count)   what a chunk says of its block's scale; the same in all lanes
///   Total                                 add(Summary) of a block's chunks, in order; bits(block_count): 32 bits for
///   Scale Scale(bits)                           `sent` is what crosses the wire code_bytes(count) of a block
///   encode(in, chunk, scale, codes, next)
///   decode(chunk, sent scale, codes, how, out)
namespace octavo::sycl_device {

using sycl_span::Blocks, sycl_span::Chunk, sycl_span::kChunk;

template <class Codec>
inline std::uint8_t* codes_of(const Blocks& blocks, std::uint64_t number) {
  return blocks.payload.codes + number * Codec::code_bytes(blocks.block);
}

/// Calls body(number) for the blocks that this group takes whole.
template <class Body>
inline void for_blocks(const Blocks& blocks, Body body) {
  const std::uint64_t span = blocks.blocks_of_group(), from = group_index() * span;
  for (std::uint64_t number = from; number < std::min(from + span, blocks.blocks()); ++number) body(number);
}

/// Calls body(chunk) for the chunks of a block.
template <class Body>
inline void for_chunks(const Blocks& blocks, std::uint64_t number, Body body) {
  for (std::uint64_t i = 0; i < blocks.chunks_of_block(); ++i) {
    const Chunk chunk = blocks.chunk(number, i);
    if (chunk.count > 0) body(chunk);
  }
}

/// Many blocks: a group takes whole ones, and reads each twice while it is in the cache.
template <class Codec>
inline void encode_blocks(const EncodeInput& in, const Blocks& blocks, rules::Residual* next) {
  for_blocks(blocks, [&](std::uint64_t number) {
    typename Codec::Total total;
    std::uint64_t block_count = 0;
    for_chunks(blocks, number, [&](const Chunk& chunk) {
      total.add(Codec::summarize(in, chunk.first, chunk.count));
      block_count = chunk.block_count;
    });
    const typename Codec::Scale scale(total.bits(block_count));
    if (lane() == 0) blocks.payload.scales[number] = scale.sent;
    for_chunks(blocks, number,
               [&](const Chunk& chunk) { Codec::encode(in, chunk, scale, codes_of<Codec>(blocks, number), next); });
  });
}

// Few wide blocks: a group a chunk, in four kernels. Between them a chunk's summary waits where its codes will be, and
// a block's total where its scale will be. The last chunk of a block may have no room for a summary: it keeps none.

template <class Codec>
inline std::uint8_t* room_of(const Blocks& blocks, std::uint64_t number, const Chunk& chunk) {
  return codes_of<Codec>(blocks, number) + Codec::code_bytes(chunk.offset);
}

/// Calls body(block number, chunk) for this group's chunk.
template <class Body>
inline void with_chunk(const Blocks& blocks, Body body) {
  const std::uint64_t of_block = blocks.chunks_of_block(), number = group_index() / of_block;
  const Chunk chunk = blocks.chunk(number, group_index() % of_block);
  if (chunk.count > 0) body(number, chunk);
}

template <class Codec>
inline void summarize_chunks(const EncodeInput& in, const Blocks& blocks) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    if (chunk.is_last()) return;
    const auto summary = Codec::summarize(in, chunk.first, chunk.count);
    if (lane() == 0) __builtin_memcpy(room_of<Codec>(blocks, number, chunk), &summary, sizeof summary);
  });
}

/// A group a block.
template <class Codec>
inline void add_summaries(const EncodeInput& in, const Blocks& blocks) {
  typename Codec::Total total;
  const std::uint64_t number = group_index();
  std::uint64_t block_count = 0;
  for_chunks(blocks, number, [&](const Chunk& chunk) {
    typename Codec::Summary summary;
    if (chunk.is_last()) {
      summary = Codec::summarize(in, chunk.first, chunk.count);
    } else {
      __builtin_memcpy(&summary, room_of<Codec>(blocks, number, chunk), sizeof summary);
    }
    total.add(summary);
    block_count = chunk.block_count;
  });
  const std::uint32_t bits = total.bits(block_count);
  if (lane() == 0) __builtin_memcpy(blocks.payload.scales + number, &bits, sizeof bits);
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
  if (number < blocks.blocks()) {
    blocks.payload.scales[number] = typename Codec::Scale(kept_bits(blocks, number)).sent;
  }
}

template <class Codec>
inline void decode_blocks(const Blocks& blocks, Store how, float* out) {
  for_blocks(blocks, [&](std::uint64_t number) {
    const float scale = blocks.payload.scales[number];
    for_chunks(blocks, number,
               [&](const Chunk& chunk) { Codec::decode(chunk, scale, codes_of<Codec>(blocks, number), how, out); });
  });
}

template <class Codec>
inline void decode_chunks(const Blocks& blocks, Store how, float* out) {
  with_chunk(blocks, [&](std::uint64_t number, const Chunk& chunk) {
    Codec::decode(chunk, blocks.payload.scales[number], codes_of<Codec>(blocks, number), how, out);
  });
}

}  // namespace octavo::sycl_device

/// The kernels of a codec, by the names that block_codec.cpp launches.
#define OCTAVO_BLOCK_ENCODER(name, Codec)                                                           \
  OCTAVO_KERNEL name##_encode_blocks(octavo::EncodeInput in, octavo::sycl_span::Blocks blocks,      \
                                     octavo::rules::Residual* next) {                               \
    octavo::sycl_device::encode_blocks<Codec>(in, blocks, next);                                    \
  }                                                                                                 \
  OCTAVO_KERNEL name##_summarize_chunks(octavo::EncodeInput in, octavo::sycl_span::Blocks blocks) { \
    octavo::sycl_device::summarize_chunks<Codec>(in, blocks);                                       \
  }                                                                                                 \
  OCTAVO_KERNEL name##_add_summaries(octavo::EncodeInput in, octavo::sycl_span::Blocks blocks) {    \
    octavo::sycl_device::add_summaries<Codec>(in, blocks);                                          \
  }                                                                                                 \
  OCTAVO_KERNEL name##_encode_chunks(octavo::EncodeInput in, octavo::sycl_span::Blocks blocks,      \
                                     octavo::rules::Residual* next) {                               \
    octavo::sycl_device::encode_chunks<Codec>(in, blocks, next);                                    \
  }                                                                                                 \
  OCTAVO_KERNEL name##_write_scales(octavo::sycl_span::Blocks blocks) {                             \
    octavo::sycl_device::write_scales<Codec>(blocks);                                               \
  }

#define OCTAVO_BLOCK_DECODER(name, Codec)                                                               \
  OCTAVO_KERNEL name##_decode_blocks(octavo::sycl_span::Blocks blocks, octavo::Store how, float* out) { \
    octavo::sycl_device::decode_blocks<Codec>(blocks, how, out);                                        \
  }                                                                                                     \
  OCTAVO_KERNEL name##_decode_chunks(octavo::sycl_span::Blocks blocks, octavo::Store how, float* out) { \
    octavo::sycl_device::decode_chunks<Codec>(blocks, how, out);                                        \
  }
