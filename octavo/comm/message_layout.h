// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/comm/ownership.h"
#include "octavo/export.h"

/// Where the ranges of tensors lie in messages.
namespace octavo {

/// A tensor's range inside a message.
struct Piece {
  std::uint32_t tensor = 0;  // index in the bucket
  Range range;               // of the tensor
  const Codec* codec = nullptr;
  std::uint64_t offset = 0;  // where its payload begins, in bytes from the message's start

  /// Returns a part of the piece, in the message that begins at `message`.
  PayloadPart part(std::uint8_t* message, Range part, std::uint64_t key) const {
    return {message + offset, range.count, part, key};
  }
};

/// What one rank sends another in one phase: a header, then the payloads of all ranges that one rank owns.
struct Message {
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
};

/// A tensor of a bucket, as messages are cut from it.
struct EncodedTensor {
  std::uint64_t count = 0;
  const Codec* codec = nullptr;
  Ownership ownership = Ownership::even();
};

/// Returns the messages of a bucket's tensors, one for each owner, in rank order.
OCTAVO_API std::vector<Message> cut(std::span<const EncodedTensor> tensors, int world_size, std::uint64_t header_bytes);

}  // namespace octavo
