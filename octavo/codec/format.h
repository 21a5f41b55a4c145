// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// How values become bytes. A payload of n values is one float32 scale per block (where the codec has scales), then the
/// codes, each block from a byte of its own; little-endian, padded to a multiple of 4 bytes.
namespace octavo {

enum class Codec : std::uint8_t { fp32, bf16, scaled_sign, majority_vote, int4 };

/// What is fixed for a codec; adding a codec adds a row to the table in format.cpp.
struct CodecTraits {
  Codec codec;
  const char* name;
  CodecKernels KernelTable::* kernels;
  std::uint64_t (*code_bytes)(std::uint64_t count);  // of one block
  bool scaled;                                       // one scale per block
  std::uint64_t default_block;                       // elements
};

OCTAVO_API const CodecTraits& traits(Codec codec);

struct OCTAVO_API Format {
  Codec codec = Codec::fp32;
  std::uint64_t block = 0;  // elements

  std::uint64_t blocks(std::uint64_t count) const;
  std::uint64_t scale_bytes(std::uint64_t count) const;
  std::uint64_t payload_bytes(std::uint64_t count) const;
  Payload payload(std::uint8_t* bytes, std::uint64_t count) const;
  /// The rest of a payload from element `first` on, a multiple of `block`.
  Payload from(Payload payload, std::uint64_t first) const;
};

/// The codec with its own block size.
OCTAVO_API Format default_format(Codec codec);

}  // namespace octavo
