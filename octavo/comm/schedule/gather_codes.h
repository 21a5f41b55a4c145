// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/layout.h"
#include "octavo/comm/schedule/contribution.h"
#include "octavo/comm/schedule/packed_transfer.h"
#include "octavo/comm/schedule/parts.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Compressed all-gather: each owner sends the codes of its ranges to all, and every rank, the owner too, decodes the
/// same bytes, so that the results have the same bits on all ranks. By all-to-all: Gloo's all-gather takes several
/// times as long.
class GatherCodes {
 public:
  GatherCodes(Wire& wire, c10::Device device) : wire_(wire), device_(device), packed_(wire) {}

  /// Makes room for the codes of this rank's own ranges, to be written to own_bytes() by own_pieces(), which must be
  /// done when send() is called. The tensors must stay until decode_all() is done.
  /// `digest`: of the bucket.
  void begin(std::span<const Contribution> tensors, std::uint64_t digest);
  std::span<const Piece> own_pieces() const { return own().pieces; }
  std::uint8_t* own_bytes() { return sent_.mutable_data_ptr<std::uint8_t>(); }

  void send();
  /// Where a codec packs send() tells the others sizes alone, and this starts a second transfer.
  void advance();
  void wait();
  /// Enqueues the decoding of all ranges into the tensors, but for those of power 0. Sets *nonfinite, memory of
  /// reserve_on_host, to 1 where a result is not finite. `own_is_there`: this rank's own ranges hold already what they
  /// were encoded from, so that those that travel as they are stay, unless it is asked whether they are finite.
  void decode_all(std::span<const float> power, std::uint32_t* nonfinite, bool own_is_there = false);

  /// As of ScatterSum.
  std::span<const PackedFigures> packed() const {
    return packs_ ? packed_.figures() : std::span<const PackedFigures>();
  }

 private:
  std::uint8_t* message_of(int owner);
  std::uint64_t sealed(std::uint64_t bytes) const;
  const Message& own() const { return messages_[static_cast<std::size_t>(wire_.rank())]; }

  Wire& wire_;
  c10::Device device_;
  std::span<const Contribution> tensors_;
  std::uint64_t digest_ = 0;
  std::vector<Message> messages_;  // by owner
  at::Tensor sent_, got_;          // uint8, on the host; the own message lies there once for each receiver, or once
  Parts parts_;
  std::optional<Transfer> transfer_;
  PackedTransfer packed_;  // in its place where a codec packs
  bool packs_ = false;
};

}  // namespace octavo
