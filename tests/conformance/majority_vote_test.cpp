// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/rules/sign_bits.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

std::uint64_t code_bytes(std::uint64_t count) { return 2 * rules::packed_sign_bytes(count); }
const CodecUnderTest kCodec = {&KernelTable::majority_vote, code_bytes, true, {64, 1000, 5000, 1U << 19}};

TEST(MajorityVote, EqualsReference) { expect_codec_conforms(kCodec); }

TEST(MajorityVote, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) {
  expect_bad_values_stay_in_their_block(kCodec);
}

TEST(MajorityVote, PartsRoundAsTheWhole) { expect_parts_round_as_the_whole(kCodec, 72); }

TEST(MajorityVote, AZeroOfEitherSignAbstains) {
  const std::vector<float> values = {2, 0.0F, -2, -0.0F, 1e-41F, -1e-41F};
  const std::vector<float> expected = {1, 0, -1, 0, 1, -1};
  Encoded to(1, 2, 0, 0);
  tested().majority_vote.encode({}, {values.data()}, values.size(), 64, to.payload(), nullptr);
  std::vector<float> votes(values.size());
  tested().majority_vote.decode({}, to.payload(), values.size(), 64, Store::assign, votes.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(votes[i], expected[i]) << i;
    EXPECT_FALSE(expected[i] == 0 && std::signbit(votes[i])) << i;
  }
}

}  // namespace

}  // namespace octavo::conformance
