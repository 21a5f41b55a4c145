// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/export.h"

/// Who owns which elements, and where they lie in a message.
///
/// Every rank owns one range of every tensor. Which one depends on the tensor's shape and the world's size alone, never
/// on how tensors share a bucket: DDP rebuilds its buckets after the first step, and what an owner remembers must
/// survive.
namespace octavo {

/// Who owns which elements of a tensor: each rank a range, in rank order and of one size, but for the last ones, which
/// may get fewer elements or none.
struct OCTAVO_API Ownership {
  std::uint64_t unit = 64;  // elements; ranges start at multiples of it

  /// For sums that go to all ranks. No two ranks share a byte of codes or a cache line of values.
  static Ownership even() { return {}; }
  /// Whole rows of `row` elements, as torch.chunk cuts the first dimension: the shards of FSDP2.
  static Ownership rows(std::uint64_t row) { return {row}; }

  /// Equal shares, the last ones shorter: the shards of ZeRO.
  static Ownership shares() { return {1}; }

  /// Elements from the start of one rank's range to that of the next one's.
  std::uint64_t share(std::uint64_t count, int world_size) const;
};

/// A parameter of the model, as its gradients are averaged.
struct ParameterInfo {
  std::string name;
  std::uint64_t count;     // real numbers: two for each element of a complex parameter
  bool exempt;             // is sent in float32
  std::uint64_t rows = 1;  // as a matrix: the first of its dimensions, where there are more
  Ownership ownership = Ownership::even();
};

/// Where a parameter's gradient lies in a bucket.
struct Slot {
  std::size_t parameter;  // index into the ParameterInfos
  std::uint64_t offset;   // in elements of the bucket
  /// Where it lies instead, in memory of its own, which belongs to the job; null: in the bucket.
  void* apart = nullptr;
};

/// Of a tensor of these sizes as a matrix (ParameterInfo::rows); 1 where it has one dimension or no elements.
OCTAVO_API std::uint64_t rows_of(std::span<const std::int64_t> sizes);

/// The range of a tensor of `count` elements that `rank` of `world_size` owns.
OCTAVO_API Range owned_range(std::uint64_t count, int rank, int world_size, Ownership ownership = Ownership::even());

/// The part of a tensor that `rank` sends to others, all but its own range, as one array: where feedback is kept.
struct OCTAVO_API Sent {
  std::uint64_t count = 0;
  Range own;
  /// The place of a range that starts at element `first` of the tensor.
  std::uint64_t index(std::uint64_t first) const { return first > own.first ? first - own.count : first; }
};
OCTAVO_API Sent sent_part(std::uint64_t count, int rank, int world_size, Ownership ownership = Ownership::even());

/// A tensor's range inside a message.
struct Piece {
  std::uint32_t tensor = 0;  // its index in the bucket
  Range range;               // of the tensor
  const Codec* codec = nullptr;
  std::uint64_t offset = 0;  // of its payload, in bytes from the message's start

  /// A part of the piece, in the message that begins at `message`.
  PayloadPart part(std::uint8_t* message, Range part, std::uint64_t key) const {
    return {message + offset, range.count, part, key};
  }
};

/// What one rank sends another in one phase: `header_bytes`, then the payloads of all ranges that `owner` owns.
struct Message {
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
};

struct EncodedTensor {
  std::uint64_t count = 0;
  const Codec* codec = nullptr;
  Ownership ownership = Ownership::even();
};

/// The messages of a bucket's tensors, one for each owner, in the order of their ranks.
OCTAVO_API std::vector<Message> cut(std::span<const EncodedTensor> tensors, int world_size, std::uint64_t header_bytes);

}  // namespace octavo
