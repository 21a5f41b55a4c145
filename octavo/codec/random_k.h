// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/block_coding.h"
#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/rules/random_k.h"

namespace octavo {

/// One value of every stride, at places that all ranks draw alike from PayloadPart::key (rules/random_k.h). A payload
/// is that of these values by a block codec.
class RandomK final : public Codec {
 public:
  /// `is_unbiased`: values are multiplied by the stride, and what is not sent is no error that could be fed back.
  RandomK(std::uint64_t stride, bool is_unbiased, BlockCodec values);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  /// The codec without weights. Only the owner multiplies, when it sends the sum: its own values have not been sent
  /// before.
  const Codec& upward() const override { return unweighted_ ? *unweighted_ : static_cast<const Codec&>(*this); }
  /// This codec: the owner's own values are all in the sum, and no codec follows that could weight the others' values.
  const Codec& upward_only() const override { return *this; }
  /// Codecs that send one of 4 values, one of 16, and so on.
  std::vector<CodecPtr> warm_up() const override;
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

 private:
  bool is_unbiased() const { return unweighted_ != nullptr; }
  std::uint64_t strides(std::uint64_t count) const { return divide_up(count, stride_); }
  rules::RandomK shape(const PayloadPart& part) const;
  /// The part of the payload that holds the values kept from a part.
  PayloadPart kept(const PayloadPart& part) const;

  std::uint64_t stride_;
  CodecPtr unweighted_;  // null where this codec is biased
  BlockCoding values_;
};

/// randomk:RATIO[:unbiased][:CODEC]. 1/RATIO is rounded to the stride. CODEC is a block codec, dense where none is
/// named.
CodecPtr make_random_k(const CodecText& text);

}  // namespace octavo
