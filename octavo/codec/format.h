// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// How values become bytes. A payload of n values is one float32 scale per block (where the codec has scales), then the
/// codes, each block from a byte of its own; little-endian, padded to a multiple of 4 bytes.
namespace octavo {

/// What is fixed for a codec, by its rule.
struct CodecTraits {
  const char* name;
  std::uint64_t (*code_bytes)(std::uint64_t count);  // of one block
  bool has_scale;                                    // one per block
  bool leaves_error;                                 // which may be fed back
  bool keeps_magnitude;                              // false: the result is a vote, not an average
  bool dithers;                                      // its codes may be rounded stochastically
  std::uint64_t default_block;                       // elements
};

OCTAVO_API const CodecTraits& traits(BlockCodec codec);
OCTAVO_API std::span<const BlockCodec> all_block_codecs();

struct OCTAVO_API Format {
  BlockCodec codec = BlockCodec::fp32;
  std::uint64_t block = 0;  // elements
  bool stochastic = false;  // codes are rounded without bias; the same bytes mean the same

  std::uint64_t blocks(std::uint64_t count) const;
  std::uint64_t scale_bytes(std::uint64_t count) const;
  std::uint64_t payload_bytes(std::uint64_t count) const;
  Payload payload(std::uint8_t* bytes, std::uint64_t count) const;
  /// The rest of a payload from element `first` on, a multiple of `block`.
  Payload from(Payload payload, std::uint64_t first) const;
};

/// The codec with its own block size.
OCTAVO_API Format default_format(BlockCodec codec);

}  // namespace octavo
