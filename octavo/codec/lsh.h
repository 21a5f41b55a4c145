// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/codec/registry.h"
#include "octavo/rules/lsh.h"

namespace octavo {

/// Another codec, but for values that have hardly changed: of each tile of 16384 values whose hash is nearly that of
/// what receivers took for them before (rules/lsh.h) four bytes travel, which say so. Experimental.
///
/// What is encoded are differences to the estimates of +ef21 or +econtrol. A tile that is not sent decodes to zeros:
/// receivers add nothing to their estimate, take it for the values again, and the sender, which decodes what it sends,
/// keeps the same estimate. What was not sent is in the difference, and so in the next step's; +econtrol also owes it.
///
/// In a payload each tile is a word, 1 where it was sent and 0 where it is to be reused, and the inner codec's payload
/// of the tile's values by themselves; packed, the inner payload is packed too, and missing where the word is 0.
class Lsh final : public Codec {
 public:
  /// `bits`: the share of the hash's bits that may differ, up to 0.5. `inner`: has magnitudes, and is the same both
  /// ways.
  Lsh(double bits, CodecPtr inner);

  std::uint64_t payload_bytes(std::uint64_t count) const override;
  std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const override;
  std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                      std::uint8_t* payload) const override;
  std::uint64_t reused(const std::uint8_t* payload, std::uint64_t count) const override;
  /// That of the inner codec.
  std::vector<CodecPtr> warm_up() const override;
  /// Reuses nothing without an estimate, or where a residual is wanted. On a device both wait for its current stream:
  /// the host decides what is sent.
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;

  static constexpr double kBits = 0.1;  // where a plan does not say it

 private:
  /// A tile of a payload: its word, then the inner codec's payload.
  struct Tile {
    std::uint8_t* word;
    PayloadPart inner;    // all of it
    std::uint64_t first;  // element of the part
  };
  template <class Body>
  void for_each_tile(const PayloadPart& part, Body body) const;
  std::uint64_t tile_bytes(std::uint64_t count) const;
  void sketch(c10::Device device, const EncodeInput& input, const PayloadPart& part, float* cells) const;

  double bits_;
  rules::LshLimit limit_;
  CodecPtr inner_;
};

/// lsh:[BITS:]CODEC; CODEC: any that keeps magnitudes, with its options.
CodecPtr make_lsh(const CodecText& text);

}  // namespace octavo
