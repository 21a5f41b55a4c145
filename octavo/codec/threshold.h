// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/codec/top_k.h"

namespace octavo {

/// The values above a threshold, by magnitude, and their places (after Strom 2015); how many there are depends on the
/// values.
///
/// The threshold is a factor T times the root of the mean square of all that is encoded together (an owner's range of a
/// tensor), without its residual. It follows the gradient as training goes on, and a residual is sent once it has grown
/// to the threshold. If residuals were part of the mean square, the threshold would grow with them, and values of one
/// magnitude would never be sent. At least one value is sent, and at most one of T^2, the largest ones. Without a
/// residual no more are above the threshold (Chebyshev); with one, a tensor whose values are all alike would otherwise
/// be sent at once.
///
/// A payload is the number of values, a word, then the payload of a TopK that keeps so many. What lies behind is not
/// sent. On the CPU one thread encodes a tensor, because its payload cannot be cut.
class Threshold final : public Codec {
 public:
  /// `factor` is at least 1. `values` is the block codec of what is sent, with its own block size.
  Threshold(double factor, BlockCodec values);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const override;
  std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                      std::uint8_t* payload) const override;
  /// Codecs with the factors 2, 4, 8 and so on: they send up to a quarter of all values, a sixteenth and so on.
  std::vector<CodecPtr> warm_up() const override;
  /// On a device encode() and decode() wait for its current stream: how much is sent decides where it lies.
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

 private:
  std::uint64_t most(std::uint64_t count) const;
  std::uint64_t sent_bytes(std::uint64_t kept, std::uint64_t count) const;
  LargestPlace place(std::uint8_t* payload, std::uint64_t kept, std::uint64_t count) const;

  double factor_;
  BlockCoding values_;
};

/// threshold:T[:CODEC]. CODEC is a block codec, dense where none is named.
CodecPtr make_threshold(const CodecText& text);

}  // namespace octavo
