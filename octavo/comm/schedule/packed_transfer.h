// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/layout.h"
#include "octavo/comm/schedule/contribution.h"
#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Whether a codec of these tensors packs, in a world where something is sent; `codec` as of cut().
bool packs(std::span<const Contribution> tensors, const Codec* Contribution::* codec, int world_size);

/// A message and where it lies in the host's memory, with payloads at the places of its pieces.
struct PlacedMessage {
  const Message* message;
  std::uint8_t* bytes;
};

/// How messages travel where a codec packs (Codec::pack), in two transfers: each rank tells every other how large its
/// message will be, then sends it packed, which is: all that lies before the first payload, then what pack() makes of
/// the payloads, each from a multiple of 4 bytes on. Both are sealed. What a rank says that it will send is held to
/// what the bucket allows before room is made for it.
class PackedTransfer {
 public:
  explicit PackedTransfer(Wire& wire) : wire_(wire) {}

  /// Packs out[r] for each other rank r, and tells it the size. `tensors`: how many the bucket has. The messages may
  /// then be overwritten.
  void send_sizes(std::span<const PlacedMessage> out, std::size_t tensors, std::uint64_t digest);
  /// Waits for the sizes, sends the packed messages and makes room for those of the others. `in`: where each other
  /// rank's is to lie; the layouts and the memory must stay until receive() is done.
  void send(std::span<const PlacedMessage> in);
  /// Waits for the messages and unpacks them to their places. Throws Error communication where one is not what was
  /// sent, or not what pack() makes.
  void receive();

  /// By tensor, of payloads whose codec packs.
  std::span<const PackedFigures> figures() const { return figures_; }

 private:
  std::uint64_t pack(const PlacedMessage& from, std::uint8_t* to);
  void count_payloads(const Message& message);
  bool unpack(std::span<const std::uint8_t> packed, const PlacedMessage& to) const;

  Wire& wire_;
  std::uint64_t digest_ = 0;
  std::vector<PlacedMessage> in_;
  std::vector<Parcel> parcels_;                     // by rank; those who get the same message have the same
  std::vector<std::uint64_t> got_bytes_;            // by rank
  std::vector<PackedFigures> of_pieces_;            // of the message that was packed last
  std::vector<PackedFigures> figures_;              // by tensor
  at::Tensor sent_, got_, sent_sizes_, got_sizes_;  // uint8, on the host
  std::optional<Transfer> transfer_;
};

}  // namespace octavo
