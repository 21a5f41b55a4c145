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
/// Every rank owns one range of every tensor. The range depends only on the tensor's shape and the world's size, never
/// on how tensors share a bucket: DDP rebuilds its buckets after the first step, and what an owner remembers must
/// survive that.
namespace octavo {

/// The rule by which ranks own the elements of a tensor. Each rank owns one range, in rank order. All ranges have the
/// same size, but the last ones may have fewer elements or none.
struct OCTAVO_API Ownership {
  std::uint64_t unit = 64;  // in elements; ranges start at multiples of it

  /// The ownership for sums that go to all ranks. No two ranks share a byte of codes or a cache line of values.
  static Ownership even() { return {}; }
  /// The ownership of whole rows of `row` elements, cut as torch.chunk cuts the first dimension: the shards of FSDP2.
  static Ownership rows(std::uint64_t row) { return {row}; }

  /// The ownership of ranges of equal size, the last ones shorter: the shards of ZeRO.
  static Ownership equal_ranges() { return {1}; }

  /// Returns the number of elements from the start of one rank's range to the start of the next one's.
  std::uint64_t range_size(std::uint64_t count, int world_size) const;
};

/// What averaging a parameter's gradients must know of it.
struct ParameterInfo {
  std::string name;
  std::uint64_t count;  // real numbers: two for each element of a complex parameter
  bool exempt;          // it is sent in float32
  /// Of the parameter as a matrix: its first dimension, or 1 where it has only one (rows_of). A matrix that has 1 here
  /// takes more bytes by `powersgd` than by `dense`, since its factors are a row and a number.
  std::uint64_t rows = 1;
  Ownership ownership = Ownership::even();
};

/// Where a parameter's gradient lies in a bucket.
struct Slot {
  std::size_t parameter;  // index into the ParameterInfos
  std::uint64_t offset;   // in elements of the bucket
  /// The gradient's address where it lies outside the bucket, in memory that belongs to the job; null: in the bucket.
  void* apart = nullptr;
};

/// Returns ParameterInfo::rows of a tensor of these sizes; 1 where it has one dimension or no elements.
OCTAVO_API std::uint64_t rows_of(std::span<const std::int64_t> sizes);

/// Returns the range of a tensor of `count` elements that `rank` of `world_size` owns.
OCTAVO_API Range owned_range(std::uint64_t count, int rank, int world_size, Ownership ownership = Ownership::even());

/// The ranges of a tensor that the other ranks own, which is all that a rank sends, as one array. Feedback is kept in
/// this layout.
struct OCTAVO_API OthersRanges {
  std::uint64_t count = 0;
  Range own;
  /// Returns the index in this array of a range that starts at element `first` of the tensor.
  std::uint64_t index(std::uint64_t first) const { return first > own.first ? first - own.count : first; }
};
/// Returns the ranges of a tensor of `count` elements that others than `rank` of `world_size` own.
OCTAVO_API OthersRanges others_ranges(std::uint64_t count, int rank, int world_size,
                                      Ownership ownership = Ownership::even());

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
