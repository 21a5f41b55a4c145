// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

/// The messages that the ranks of a schedule send one another. Nothing is sent to the rank itself: where messages lie
/// one after another, in rank order, its own is left out.
namespace octavo {

/// What every message begins with.
struct MessageHeader {
  std::uint64_t digest;    // of the bucket (Bucket::digest)
  std::uint64_t checksum;  // of the sealed bytes that follow
};

/// Writes the header of a message. `bytes`: how many of its first bytes are sealed, header included; all of them but
/// the header must be there.
OCTAVO_API void seal(std::uint8_t* message, std::uint64_t bytes, std::uint64_t digest);

/// Throws Error communication where a message that rank `sender` of the wire sent this rank has another digest, or is
/// not what was sealed.
void require_sealed(const std::uint8_t* message, std::uint64_t bytes, std::uint64_t digest, const Wire& wire,
                    int sender);

/// Returns how much of a message of `bytes` bytes is sealed: all of it, or `header_bytes` where the codec of every
/// tensor on this way is exact (CodecTraits), as float32 is, which process groups send without a checksum, too. A
/// flipped bit then changes one value, not a block of values.
std::uint64_t sealed_bytes(std::span<const Contribution> tensors, Way way, std::uint64_t header_bytes,
                           std::uint64_t bytes);

/// Returns the messages of a bucket on this way, by owner.
std::vector<Message> cut(std::span<const Contribution> tensors, Way way, int world_size, std::uint64_t header_bytes);

/// Returns the most bytes that a message of so many tensors, with so many values of one owner, takes under any plan.
/// Receivers reserve this many bytes, so that a message sent under another plan arrives whole and is refused by its
/// header.
OCTAVO_API std::uint64_t longest_message(std::uint64_t values, std::uint64_t tensors);

std::vector<std::uint64_t> sizes(const std::vector<Message>& messages);

/// Sends parcels[r] of `send`, memory of Wire::reserve_to_send, to each other rank r. `receive`: a buffer
/// (reserve_on_host) for what the others send, used where that does not stay in their memory; Transfer::from() says
/// where it lies.
Transfer exchange_with_others(Wire& wire, c10::Device device, const at::Tensor& send, std::vector<Parcel> parcels,
                              at::Tensor& receive, std::vector<std::uint64_t> receive_bytes);
/// Does the same for messages of so many bytes that lie one after another.
OCTAVO_API Transfer exchange_with_others(Wire& wire, c10::Device device, const at::Tensor& send,
                                         std::vector<std::uint64_t> send_bytes, at::Tensor& receive,
                                         std::vector<std::uint64_t> receive_bytes);
/// Does the same for one message to all others, at the beginning of `send`.
Transfer send_to_others(Wire& wire, c10::Device device, const at::Tensor& send, std::uint64_t bytes,
                        at::Tensor& receive, std::vector<std::uint64_t> receive_bytes);

/// Returns the sum of the bytes of all ranks but one.
std::uint64_t bytes_without(std::span<const std::uint64_t> bytes, int rank);

}  // namespace octavo
