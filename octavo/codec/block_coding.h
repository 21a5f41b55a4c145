// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>

#include "octavo/codec/codec.h"
#include "octavo/codec/registry.h"
#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// The codecs of rules/block_codecs.h. A payload of n values is one float32 scale per block (where the codec has
/// scales), then the codes, each block from a byte of its own; little-endian, padded to a multiple of 4 bytes.
namespace octavo {

OCTAVO_API std::span<const BlockCodec> all_block_codecs();
/// "dense" for fp32, which travels as it is.
OCTAVO_API std::string plan_name(BlockCodec codec);

class OCTAVO_API BlockCoding final : public Codec {
 public:
  /// `block`: elements, a multiple of 8; 0: the codec's own. `stochastic`: codes are rounded without bias; the same
  /// bytes mean the same.
  explicit BlockCoding(BlockCodec codec, std::uint64_t block = 0, bool stochastic = false);

  BlockCodec codec() const { return codec_; }

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

 private:
  std::uint64_t scale_bytes(std::uint64_t count) const;
  /// The rest of a payload from a part on.
  Payload payload(const PayloadPart& part) const;

  BlockCodec codec_;
  std::uint64_t block_;
  bool stochastic_;
};

/// The codec with its own block size.
OCTAVO_API const Codec& block_coding(BlockCodec codec);

/// The least bytes in which values of a floating dtype travel as they are: bfloat16 in bfloat16, others in float32.
OCTAVO_API const Codec& exact_coding(at::ScalarType dtype);

/// The block codec of that name, for the values that another codec selects. Refuses what is none, or keeps no
/// magnitudes.
BlockCodec values_codec(const CodecText& text, std::string_view name);

/// What a plan's text asks for: NAME[:BLOCK][:stochastic], or NAME:lossless (lossless.h).
CodecPtr make_block_coding(BlockCodec codec, const CodecText& text);

}  // namespace octavo
