// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/gather_codes.h"

#include "octavo/comm/schedule/float_part.h"
#include "octavo/comm/schedule/messages.h"
#include "octavo/device/scratch.h"

namespace octavo {

void GatherCodes::begin(std::span<const Contribution> tensors, std::uint64_t digest) {
  tensors_ = tensors;
  digest_ = digest;
  packs_ = packs(tensors_, Way::down, wire_.world_size());
  messages_ = cut(tensors_, Way::down, wire_.world_size(), sizeof(MessageHeader));
  wire_.reserve_to_send(sent_, own().bytes, device_);
}

void GatherCodes::send() {
  if (wire_.world_size() == 1) return;
  if (packs_) {
    const std::vector<PlacedMessage> to_all(messages_.size(), {&own(), own_bytes()});
    return packed_.send_sizes(to_all, tensors_.size(), digest_);
  }
  const std::uint64_t bytes = own().bytes;
  seal(own_bytes(), sealed(bytes), digest_);
  transfer_ = send_to_others(wire_, device_, sent_, bytes, got_, sizes(messages_));
}

void GatherCodes::advance() {
  std::vector<PlacedMessage> incoming;
  reserve_on_host(got_, bytes_without(sizes(messages_), wire_.rank()), device_);
  for (int owner = 0; owner < wire_.world_size(); ++owner) {
    incoming.push_back({&messages_[static_cast<std::size_t>(owner)], message_of(owner)});
  }
  packed_.send(incoming);
}

void GatherCodes::wait() {
  if (packs_) packed_.receive();
  if (transfer_) transfer_->wait();
  if (!packs_) {
    for (const int owner : wire_.others()) {
      const std::uint64_t bytes = messages_[static_cast<std::size_t>(owner)].bytes;
      require_sealed(message_of(owner), sealed(bytes), digest_, wire_, owner);
    }
  }
}

/// Returns where the message of an owner lies. This rank's own is not sent and lies where it was written.
std::uint8_t* GatherCodes::message_of(int owner) {
  if (owner == wire_.rank()) return own_bytes();
  if (transfer_) return transfer_->from(owner);
  std::uint8_t* message = got_.mutable_data_ptr<std::uint8_t>();
  for (int before = 0; before < owner; ++before) {
    if (before != wire_.rank()) message += messages_[static_cast<std::size_t>(before)].bytes;
  }
  return message;
}

std::uint64_t GatherCodes::sealed(std::uint64_t bytes) const {
  return sealed_bytes(tensors_, Way::down, sizeof(MessageHeader), bytes);
}

void GatherCodes::decode_sums(std::span<const float> power, std::uint32_t* nonfinite) {
  decode(nonfinite, [&](const Piece& piece, int) { return power[piece.tensor] != 0; });
}

void GatherCodes::decode_shards(std::uint32_t* nonfinite) {
  decode(nonfinite, [&](const Piece& piece, int owner) {
    const bool is_there = owner == wire_.rank() && !piece.codec->traits().leaves_error;
    return nonfinite || !is_there;
  });
}

template <class IsDecoded>
void GatherCodes::decode(std::uint32_t* nonfinite, const IsDecoded& is_decoded) {
  pieces_.clear();
  for (int owner = 0; owner < wire_.world_size(); ++owner) {
    std::uint8_t* const message = message_of(owner);
    for (const Piece& piece : messages_[static_cast<std::size_t>(owner)].pieces) {
      if (is_decoded(piece, owner)) pieces_.add(tensors_[piece.tensor], {&piece, owner, message});
    }
  }
  pieces_.for_each([&](const PlacedPiece& one, Range part) {
    const Contribution& tensor = tensors_[one.piece->tensor];
    const SentPart sent = tensor.sent(Way::down, one.sender, *one.piece, part, one.message, device_);
    const FloatPart result(device_, tensor, sent.first(), sent.count());
    tensor.memory->decode(sent, result.is_copy() ? Store::assign : Store::uncached, result.data(), nonfinite);
    result.store();
  });
  transfer_.reset();  // a device's kernels read got_, which stays
}

}  // namespace octavo
