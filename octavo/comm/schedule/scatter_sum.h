// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/schedule/packed_transfer.h"
#include "octavo/comm/schedule/parts.h"
#include "octavo/comm/schedule/streamed_pieces.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Compressed reduce-scatter: each rank sends every owner the codes of the range that it owns. The owner adds them up
/// in float32, in rank order, its own values last and as they are, and encodes the sum. For a tensor that codes_own it
/// takes codes of its own values, too; for a tensor that is averaged over hits it adds its own codes in rank order. Not
/// thread-safe, like a Schedule.
class ScatterSum {
 public:
  ScatterSum(Wire& wire, c10::Device device) : wire_(wire), device_(device), pieces_(device), packed_(wire) {}

  /// Measures the gradients, encodes them and sends them to the owners. The tensors must stay until reduce() is done.
  /// `digest`: of the bucket.
  void begin(std::span<const Contribution> tensors, std::uint64_t digest);
  /// Returns the transfers of the bucket of begin(): 2 where a codec packs, because the sizes are sent first; advance()
  /// starts the second one.
  int transfers() const { return packs_ ? 2 : 1; }
  void advance();
  /// Whether the bucket of begin() stays here. With one rank nothing is sent and nothing is encoded, unless a plan
  /// votes, because even one rank's vote is a sign, or a memory acts alone.
  bool stays_here() const;
  /// Waits for what the others sent. Afterwards power() is that of all ranks.
  void wait();
  /// Encodes the sums of this rank's own ranges, divided, by the codecs of `down`, to the places of their pieces from
  /// `out` on, memory of the host (reserve_on_host). The payload of fp32 is the sums themselves.
  void reduce(double divisor, std::span<const Piece> down, std::uint8_t* out);

  /// Returns the powers by tensor, as in Outcome.
  const std::vector<float>& power() const { return power_; }
  /// Returns the figures by tensor, as in Outcome.
  std::span<const PackedFigures> packed() const {
    return packs_ ? packed_.figures() : std::span<const PackedFigures>();
  }

 private:
  struct Scratch {
    at::Tensor sum, values, hits, votes;  // for one part, as bytes: float32 three times, codes
  };

  void encode_all(std::span<const PlacedMessage> out);
  void encode_part(const PlacedPiece& placed, Range part) const;
  void reduce_part(double divisor, const Piece& up, const Piece& down, Range part, std::uint8_t* out,
                   Scratch& scratch) const;
  std::vector<PlacedMessage> outgoing() const;
  void merge_powers();
  EncodeInput mean_over_hits(double divisor, const Piece& piece, Range part, Scratch& scratch) const;
  const float* sum_of_others(const Piece& piece, Range part, Scratch& scratch) const;
  EncodeInput own_votes(const Contribution& tensor, const EncodeInput& input, const Piece& piece, Range part,
                        Scratch& scratch) const;
  EncodeInput own_code(const Contribution& tensor, const Piece& piece, Range part, Scratch& scratch) const;
  std::uint64_t sealed(std::uint64_t bytes) const;
  const Message& own() const { return messages_[static_cast<std::size_t>(wire_.rank())]; }
  std::uint8_t* received_from(int sender) const;
  std::uint8_t* to_itself() const;

  Wire& wire_;
  c10::Device device_;
  std::span<const Contribution> tensors_;
  std::uint64_t digest_ = 0;
  std::vector<float> power_;
  std::vector<Message> messages_;  // by owner
  at::Tensor sent_, got_;          // uint8, on the host
  at::Tensor to_itself_;           // the same: own(), encoded as the others' messages are; where a tensor codes_own
  at::Tensor chunk_powers_;
  std::vector<Scratch> scratch_;  // by thread
  StreamedPieces pieces_;         // encoded
  Parts parts_;                   // reduced
  std::optional<Transfer> transfer_;
  PackedTransfer packed_;  // in the place of transfer_ where a codec packs
  bool packs_ = false;
};

}  // namespace octavo
