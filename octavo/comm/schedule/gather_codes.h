// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/schedule/packed_transfer.h"
#include "octavo/comm/schedule/streamed_pieces.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Compressed all-gather: each owner sends the codes of its ranges to all, and every rank, the owner too, decodes the
/// same bytes, so that the results have the same bits on all ranks. It is done by all-to-all, because Gloo's all-gather
/// takes several times as long.
class GatherCodes {
 public:
  GatherCodes(Wire& wire, c10::Device device) : wire_(wire), device_(device), pieces_(device), packed_(wire) {}

  /// Makes room for the codes of this rank's own ranges. They are to be written to own_bytes() by own_pieces() before
  /// send() is called. The tensors must stay until they are decoded. `digest`: of the bucket.
  void begin(std::span<const Contribution> tensors, std::uint64_t digest);
  std::span<const Piece> own_pieces() const { return own().pieces; }
  std::uint8_t* own_bytes() { return sent_.mutable_data_ptr<std::uint8_t>(); }

  void send();
  /// Starts a second transfer where a codec packs; send() has then told the others only sizes.
  void advance();
  void wait();
  /// Enqueues the decoding of all ranges into the tensors, except into those of power 0. Sets *nonfinite, memory of
  /// reserve_on_host, to 1 where a result is not finite.
  void decode_sums(std::span<const float> power, std::uint32_t* nonfinite);
  /// Enqueues the decoding of all ranges into tensors that hold this rank's own ranges already. `nonfinite`: as above;
  /// null: nobody asks, and own ranges whose codec leaves no error stay as they are.
  void decode_shards(std::uint32_t* nonfinite);

  /// As in ScatterSum.
  std::span<const PackedFigures> packed() const {
    return packs_ ? packed_.figures() : std::span<const PackedFigures>();
  }

 private:
  /// Decodes the pieces for which is_decoded(piece, owner) is true.
  template <class IsDecoded>
  void decode(std::uint32_t* nonfinite, const IsDecoded& is_decoded);
  std::uint8_t* message_of(int owner);
  std::uint64_t sealed(std::uint64_t bytes) const;
  const Message& own() const { return messages_[static_cast<std::size_t>(wire_.rank())]; }

  Wire& wire_;
  c10::Device device_;
  std::span<const Contribution> tensors_;
  std::uint64_t digest_ = 0;
  std::vector<Message> messages_;  // by owner
  at::Tensor sent_, got_;          // uint8, on the host; this rank's own message is stored once for all receivers
  StreamedPieces pieces_;
  std::optional<Transfer> transfer_;
  PackedTransfer packed_;  // in the place of transfer_ where a codec packs
  bool packs_ = false;
};

}  // namespace octavo
