// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"

namespace octavo {

inline constexpr std::string_view kLossless = "lossless";

/// bf16 or fp16 in fewer bytes: the words of a payload are packed without loss (rules/lossless.h). Payloads are those
/// of the block codec, on any device. A packed payload is a WordBlock for every 1024 words, then the bytes that these
/// describe.
class Lossless final : public Codec {
 public:
  /// `words` is bf16 or fp16.
  explicit Lossless(BlockCodec words);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const override;
  std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                      std::uint8_t* payload) const override;
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override {
    words_.encode(device, input, to, next_residual);
  }
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override {
    words_.decode(device, from, store, out, nonfinite);
  }

 private:
  BlockCoding words_;
};

/// bf16:lossless, fp16:lossless.
CodecPtr make_lossless(BlockCodec codec, const CodecText& text);

}  // namespace octavo
