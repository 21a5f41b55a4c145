// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/rules/top_k.h"

namespace octavo {

/// Where the largest values of a part lie in a payload.
struct LargestPlace {
  rules::TopK shape;       // of the part, which has whole tiles
  PayloadPart values;      // the payload of the codec of the values
  std::uint32_t* indices;  // rules::index_words() of the part
};

/// Encode and decode the largest values of a part of `count` elements, as Codec does.
void encode_largest(c10::Device device, const EncodeInput& input, std::uint64_t count, const LargestPlace& to,
                    const Codec& values, rules::Residual* next_residual);
void decode_largest(c10::Device device, const LargestPlace& from, std::uint64_t count, const Codec& values, Store store,
                    float* out, std::uint32_t* nonfinite);

/// The largest values, by magnitude, and their places (rules/top_k.h): of everything that is encoded together, or of
/// every tile. A payload is that of the values by a block codec, whose blocks are tiles, then the words of the indices.
class TopK final : public Codec {
 public:
  /// Keeps the share `ratio` of each range. `values` is the block codec of what is selected, with its own block size.
  TopK(double ratio, BlockCodec values);
  /// Keeps `kept` values of every tile of `tile` elements. They are multiples of 8 and of 64.
  TopK(std::uint64_t kept, std::uint64_t tile, BlockCodec values);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  /// Codecs that send a quarter of all values, a sixteenth, and so on (Lin et al. 2018).
  std::vector<CodecPtr> warm_up() const override;
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

 private:
  /// The shape for a range of `count` elements.
  rules::TopK shape(std::uint64_t count) const;
  LargestPlace place(const PayloadPart& part) const;

  double ratio_ = 0;  // the share of a range that is kept; 0: there are tiles
  rules::TopK tiles_ = {};
  BlockCoding values_;
};

/// topk:RATIO[:CODEC] or topk:KEPT/TILE[:CODEC]. CODEC is a block codec, dense where none is named.
CodecPtr make_top_k(const CodecText& text);

}  // namespace octavo
