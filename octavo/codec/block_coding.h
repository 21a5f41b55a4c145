// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>

#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// The codecs of rules/block_codecs.h. A payload of n values is one float32 scale per block (where the codec has
/// scales), then the codes. The codes of each block begin at a byte. All is little-endian, and padded to a multiple of
/// 4 bytes.
namespace octavo {

OCTAVO_API std::span<const BlockCodec> all_block_codecs();
/// The codec's name in plans. It is "dense" for fp32, which is sent as it is.
OCTAVO_API std::string plan_name(BlockCodec codec);

class OCTAVO_API BlockCoding final : public Codec {
 public:
  /// `block` is the number of elements, a multiple of 8; 0: the codec's own. `stochastic`: codes are rounded without
  /// bias, and the same bytes decode to the same values.
  explicit BlockCoding(BlockCodec codec, std::uint64_t block = 0, bool stochastic = false);

  BlockCodec codec() const { return codec_; }

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

 private:
  std::uint64_t scale_bytes(std::uint64_t count) const;
  /// Returns the rest of the payload, from the part's first block on.
  Payload payload(const PayloadPart& part) const;

  BlockCodec codec_;
  std::uint64_t block_;
  bool stochastic_;
};

/// Returns the codec with its own block size.
OCTAVO_API const Codec& block_coding(BlockCodec codec);

/// Returns the codec with the fewest bytes that sends values of a floating dtype unchanged: bfloat16 for bfloat16,
/// float32 for others.
OCTAVO_API const Codec& exact_coding(at::ScalarType dtype);

/// Returns the block codec of that name for the values that another codec selects. Refuses a name that is none, and a
/// codec that keeps no magnitudes.
OCTAVO_API BlockCodec values_codec(const CodecText& text, std::string_view name);

/// Makes what a plan's text asks for: NAME[:BLOCK][:stochastic], or NAME:lossless (lossless.h).
OCTAVO_API CodecPtr make_block_coding(BlockCodec codec, const CodecText& text);

}  // namespace octavo
