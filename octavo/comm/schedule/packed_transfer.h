// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Whether a codec of these tensors packs, on this way, in a world where something is sent.
OCTAVO_API bool packs(std::span<const Contribution> tensors, Way way, int world_size);

/// A message and its place in the host's memory, where its payloads lie at the offsets of its pieces.
struct PlacedMessage {
  const Message* message;
  std::uint8_t* bytes;
};

/// How messages are sent where a codec packs (Codec::pack), in two transfers. First each rank tells every other the
/// size of its message. Then it sends the packed message: all that lies before the first payload, then what pack()
/// makes of the payloads, each starting at a multiple of 4 bytes. Both are sealed. The size that a rank tells is
/// checked against what the bucket allows before room is made for the message.
class PackedTransfer {
 public:
  explicit PackedTransfer(Wire& wire) : wire_(wire) {}

  /// Packs out[r] for each other rank r, and tells it the size. `tensors`: the number of tensors of the bucket. The
  /// messages may be overwritten afterwards.
  void send_sizes(std::span<const PlacedMessage> out, std::size_t tensors, std::uint64_t digest);
  /// Waits for the sizes, sends the packed messages and makes room for those of the others. `in`: the places for the
  /// messages of the other ranks; the layouts and the memory must stay until receive() is done.
  void send(std::span<const PlacedMessage> in);
  /// Waits for the messages and unpacks them to their places. Throws Error communication where a message is not what
  /// was sent, or not what pack() makes.
  void receive();

  /// Returns the figures by tensor, for payloads whose codec packs.
  std::span<const PackedFigures> figures() const { return figures_; }

 private:
  std::uint64_t pack(const PlacedMessage& from, std::uint8_t* to);
  void count_payloads(const Message& message);
  bool unpack(std::span<const std::uint8_t> packed, const PlacedMessage& to) const;

  Wire& wire_;
  std::uint64_t digest_ = 0;
  std::vector<PlacedMessage> in_;
  std::vector<Parcel> parcels_;                     // by rank; ranks that get the same message have the same parcel
  std::vector<std::uint64_t> got_bytes_;            // by rank
  std::vector<PackedFigures> of_pieces_;            // of the message that was packed last
  std::vector<PackedFigures> figures_;              // by tensor
  at::Tensor sent_, got_, sent_sizes_, got_sizes_;  // uint8, on the host
  std::optional<Transfer> transfer_;
};

}  // namespace octavo
