// SPDX-License-Identifier: Apache-2.0
// Who owns which elements, and where they lie in messages.
#include "octavo/comm/ownership.h"

#include <gtest/gtest.h>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/message_layout.h"

namespace octavo {

namespace {

TEST(Ownership, TheSentPartIsAllButTheOwnRange) {
  for (const int world : {1, 2, 3, 8}) {
    for (const std::uint64_t count : {0ULL, 1ULL, 64ULL, 1000ULL, 5001ULL}) {
      for (int rank = 0; rank < world; ++rank) {
        const OthersRanges sent = others_ranges(count, rank, world);
        std::uint64_t next = 0;
        for (int owner = 0; owner < world; ++owner) {
          const Range range = owned_range(count, owner, world);
          if (owner == rank || range.count == 0) continue;
          EXPECT_EQ(sent.index(range.first), next) << "count " << count << " world " << world << " rank " << rank;
          next += range.count;
        }
        EXPECT_EQ(next, sent.count);
      }
    }
  }
}

TEST(Ownership, RangesCoverEveryElementOnce) {
  for (const std::uint64_t count : {0UL, 1UL, 63UL, 64UL, 65UL, 1000UL, (1UL << 33) + 5}) {
    for (const int world : {1, 2, 3, 4, 7, 64}) {
      std::uint64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Range range = owned_range(count, rank, world);
        EXPECT_TRUE(range.count == 0 || range.first == next) << "rank " << rank;
        next += range.count;
      }
      EXPECT_EQ(next, count) << "world " << world;
    }
  }
}

TEST(MessageLayout, PiecesLieBehindTheHeaderAndDoNotOverlap) {
  const std::vector<EncodedTensor> tensors = {{1000, &block_coding(BlockCodec::sign)},
                                              {0, &block_coding(BlockCodec::fp32)},
                                              {3, &block_coding(BlockCodec::fp32)},
                                              {777, &block_coding(BlockCodec::int4)}};
  for (const Message& message : cut(tensors, 3, 4)) {
    std::uint64_t end = 4;
    for (const Piece& piece : message.pieces) {
      EXPECT_EQ(piece.offset, end);
      EXPECT_EQ(piece.offset % 4, 0U);
      end += piece.codec->payload_bytes(piece.range.count);
    }
    EXPECT_EQ(message.bytes, end);
  }
}

}  // namespace

}  // namespace octavo
