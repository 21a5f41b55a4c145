// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/export.h"

/// Who owns which elements.
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

}  // namespace octavo
