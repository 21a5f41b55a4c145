// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/packed_transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "octavo/comm/schedule/messages.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// What a rank tells of a message before it is sent.
struct SizeMessage {
  MessageHeader header;
  std::uint64_t bytes;
};

/// Returns the bytes of a message before its first payload.
std::uint64_t bytes_before_payloads(const Message& message) {
  return message.pieces.empty() ? message.bytes : message.pieces.front().offset;
}

}  // namespace

bool packs(std::span<const Contribution> tensors, Way way, int world_size) {
  return world_size > 1 && std::any_of(tensors.begin(), tensors.end(),
                                       [&](const Contribution& tensor) { return tensor.codec(way).traits().packs; });
}

void PackedTransfer::send_sizes(std::span<const PlacedMessage> out, std::size_t tensors, std::uint64_t digest) {
  digest_ = digest;
  const std::size_t world = out.size();
  parcels_.assign(world, {});
  figures_.assign(tensors, {});
  std::uint64_t room = 0;
  const std::uint8_t* before = nullptr;  // of the rank before; several ranks may get the same message
  for (const int rank : wire_.others()) {
    const PlacedMessage& to_rank = out[static_cast<std::size_t>(rank)];
    if (to_rank.bytes == before) continue;
    room += to_rank.message->bytes;
    before = to_rank.bytes;
  }
  // Only the host reads and writes packed messages, whatever the device.
  std::uint8_t* const packed = wire_.reserve_to_send(sent_, room, c10::kCPU);
  std::uint8_t* told = wire_.reserve_to_send(sent_sizes_, sizeof(SizeMessage) * (world - 1), c10::kCPU);
  Parcel parcel;
  before = nullptr;
  for (const int rank : wire_.others()) {
    const PlacedMessage& to_rank = out[static_cast<std::size_t>(rank)];
    if (to_rank.bytes != before) {
      parcel.offset += parcel.bytes;
      parcel.bytes = pack(to_rank, packed + parcel.offset);
      seal(packed + parcel.offset, parcel.bytes, digest_);
      before = to_rank.bytes;
    }
    count_payloads(*to_rank.message);
    parcels_[static_cast<std::size_t>(rank)] = parcel;
    std::memcpy(told + sizeof(MessageHeader), &parcel.bytes, sizeof parcel.bytes);
    seal(told, sizeof(SizeMessage), digest_);
    told += sizeof(SizeMessage);
  }
  const std::vector<std::uint64_t> of_sizes(world, sizeof(SizeMessage));
  transfer_ = exchange_with_others(wire_, c10::kCPU, sent_sizes_, of_sizes, got_sizes_, of_sizes);
}

std::uint64_t PackedTransfer::pack(const PlacedMessage& from, std::uint8_t* to) {
  std::uint64_t bytes = bytes_before_payloads(*from.message);
  std::memcpy(to, from.bytes, bytes);
  of_pieces_.clear();
  for (const Piece& piece : from.message->pieces) {
    const std::uint8_t* const payload = from.bytes + piece.offset;
    const std::uint64_t count = piece.range.count, packed = piece.codec->pack(payload, count, to + bytes);
    std::fill(to + bytes + packed, to + bytes + whole_words(packed), std::uint8_t{0});
    bytes += whole_words(packed);
    of_pieces_.push_back({packed, count, piece.codec->reused(payload, count)});
  }
  return bytes;
}

/// Counts the message that was packed last, which another rank gets.
void PackedTransfer::count_payloads(const Message& message) {
  for (std::size_t p = 0; p < of_pieces_.size(); ++p) {
    const Piece& piece = message.pieces[p];
    if (piece.codec->traits().packs) figures_[piece.tensor] += of_pieces_[p];
  }
}

void PackedTransfer::send(std::span<const PlacedMessage> in) {
  in_.assign(in.begin(), in.end());
  transfer_->wait();
  got_bytes_.assign(in_.size(), 0);
  for (const int rank : wire_.others()) {
    const std::uint8_t* const told = transfer_->from(rank);
    require_sealed(told, sizeof(SizeMessage), digest_, wire_, rank);
    std::uint64_t& bytes = got_bytes_[static_cast<std::size_t>(rank)];
    std::memcpy(&bytes, told + sizeof(MessageHeader), sizeof bytes);
    const Message& message = *in_[static_cast<std::size_t>(rank)].message;
    if (bytes >= bytes_before_payloads(message) && bytes <= message.bytes) continue;
    fail(ErrorCode::communication, "comm.schedule", "rank ", wire_.name_of(rank), " tells rank ",
         wire_.name_of(wire_.rank()), " that its message has ", bytes, " bytes, where this bucket's have ",
         bytes_before_payloads(message), " to ", message.bytes, kRebuild);
  }
  transfer_ = exchange_with_others(wire_, c10::kCPU, sent_, parcels_, got_, got_bytes_);
}

void PackedTransfer::receive() {
  transfer_->wait();
  for (const int rank : wire_.others()) {
    const std::uint64_t bytes = got_bytes_[static_cast<std::size_t>(rank)];
    const std::uint8_t* const packed = transfer_->from(rank);
    require_sealed(packed, bytes, digest_, wire_, rank);
    if (!unpack({packed, bytes}, in_[static_cast<std::size_t>(rank)])) {
      fail(ErrorCode::communication, "comm.schedule", "rank ", wire_.name_of(wire_.rank()),
           " received a message of rank ", wire_.name_of(rank), " whose payloads are not of the sizes that they name",
           kRebuild);
    }
  }
  transfer_.reset();
}

bool PackedTransfer::unpack(std::span<const std::uint8_t> packed, const PlacedMessage& to) const {
  const std::uint64_t before = bytes_before_payloads(*to.message);
  std::memcpy(to.bytes, packed.data(), before);
  packed = packed.subspan(before);
  for (const Piece& piece : to.message->pieces) {
    const auto bytes = piece.codec->unpack(packed, piece.range.count, to.bytes + piece.offset);
    if (!bytes || whole_words(*bytes) > packed.size()) return false;
    packed = packed.subspan(whole_words(*bytes));
  }
  return packed.empty();
}

}  // namespace octavo
