// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/rules/lsh.h"

namespace octavo {

/// Sends values by another codec, except those that have hardly changed. Where the hash of a tile of 16384 values is
/// nearly that of what receivers took for them before (rules/lsh.h), only four bytes are sent, which say so.
/// Experimental.
///
/// The differences to the estimates of +ef21 or +econtrol are encoded. A tile that is not sent decodes to zeros.
/// Receivers add nothing to their estimate and take it for the values again. The sender, which decodes what it sends,
/// keeps the same estimate. What was not sent is in the difference, and so in the next step's; +econtrol also owes it.
///
/// In a payload each tile is a word, 1 where it was sent and 0 where it is to be reused, and the inner codec's payload
/// only of this tile's values. In a packed payload the inner payload is packed too, and missing where the word is 0.
class Lsh final : public Codec {
 public:
  /// `bits` is the share of the hash's bits that may differ, up to 0.5. `inner` keeps magnitudes, and is the same both
  /// ways.
  Lsh(double bits, CodecPtr inner);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const override;
  std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                      std::uint8_t* payload) const override;
  std::uint64_t reused(const std::uint8_t* payload, std::uint64_t count) const override;
  /// The warm-up of the inner codec.
  std::vector<CodecPtr> warm_up() const override;
  /// Without an estimate, or where a residual is wanted, no tile is reused. On a device both encode() and decode() wait
  /// for its current stream: the host decides what is sent.
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

  static constexpr double kBits = 0.1;  // the default

 private:
  /// A tile of a payload: its word, then the inner codec's payload.
  struct Tile {
    std::uint8_t* word;
    PayloadPart inner;    // all of the tile's values
    std::uint64_t first;  // number of its first element in the part
  };
  template <class Body>
  void for_each_tile(const PayloadPart& part, Body body) const;
  std::uint64_t tile_bytes(std::uint64_t count) const;
  void sketch(c10::Device device, const EncodeInput& input, const PayloadPart& part, float* cells) const;

  double bits_;
  rules::LshLimit limit_;
  CodecPtr inner_;
};

/// lsh:[BITS:]CODEC. CODEC is any that keeps magnitudes, with its options.
CodecPtr make_lsh(const CodecText& text);

}  // namespace octavo
