// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/rules/sign_bits.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

std::uint64_t outcome_bytes(std::uint64_t count) { return 2 * rules::packed_sign_bytes(count); }

TEST(MajorityVote, BallotEqualsReference) {
  expect_codec_conforms({&KernelTable::ballot, rules::packed_sign_bytes, true, {64, 1000, 5000, 1U << 19}});
}

TEST(MajorityVote, OutcomeEqualsReference) {
  expect_codec_conforms({&KernelTable::majority_vote, outcome_bytes, true, {64, 1000, 5000, 1U << 19}});
}

TEST(MajorityVote, ATieIsZero) {
  const float counted[] = {2, 0, -2};
  Encoded to(1, 2, 0, 0);
  tested().majority_vote.encode({}, {counted}, 3, 64, to.payload(), nullptr);
  float outcome[3];
  tested().majority_vote.decode({}, to.payload(), 3, 64, Store::assign, outcome);
  EXPECT_EQ(outcome[0], 1.0F);
  EXPECT_EQ(outcome[1], 0.0F);
  EXPECT_EQ(outcome[2], -1.0F);
}

}  // namespace

}  // namespace octavo::conformance
