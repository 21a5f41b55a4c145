// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/operands.h"

/// How blocks are shared out to groups of lanes. Host and device must agree: both read this file.
namespace octavo::lanes {

/// The number of elements in a chunk; a wide block is cut into chunks.
inline constexpr std::uint64_t kChunk = 4096;

/// What an input may have, and what an encoder is compiled for: a bit for each.
enum Input : unsigned { kHasResidual = 1, kHasMomentum = 2, kHasOthers = 4, kWantsNext = 8, kIsStochastic = 16 };

/// As divide_up of kernels/round_up.h, which devices cannot include: it needs <concepts>, which NVRTC lacks.
OCTAVO_RULE constexpr std::uint64_t divide_up(std::uint64_t count, std::uint64_t by) {
  return count / by + (count % by != 0);
}

struct Chunk {
  std::uint64_t first, count;         // elements
  std::uint64_t offset, block_count;  // where it begins in its block, and the block's elements
  bool is_last() const { return offset + count == block_count; }
};

/// The blocks that the kernels of a codec go over. The quotients are formed once, on the host: a group has no time for
/// divisions.
struct Blocks {
  std::uint64_t count, block;
  Payload payload;
  std::uint64_t blocks, chunks_of_block, blocks_of_group;

  /// `span`: the least number of elements that a group takes.
  static Blocks of(std::uint64_t count, std::uint64_t block, Payload payload, std::uint64_t span) {
    return {count,
            block,
            payload,
            divide_up(count, block),
            divide_up(std::min(block, count), kChunk),
            divide_up(span, block)};
  }

  /// Returns a chunk of block number `number`. It may be empty, because the last block is shorter.
  Chunk chunk(std::uint64_t number, std::uint64_t of_block) const {
    const std::uint64_t start = number * block, size = std::min(block, count - start);
    const std::uint64_t offset = std::min(of_block * kChunk, size);
    return {start + offset, std::min(kChunk, size - offset), offset, size};
  }
};

}  // namespace octavo::lanes
