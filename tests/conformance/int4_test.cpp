// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/int4.h"

#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

const CodecUnderTest kCodec = {&KernelTable::int4, rules::packed_int4_bytes, true, {2, 64, 256, 1000, 5000, 1U << 19}};

TEST(Int4, EqualsReference) { expect_codec_conforms(kCodec); }

TEST(Int4, NothingIsLost) { expect_nothing_lost(kCodec, 256); }

TEST(Int4, PartsRoundAsTheWhole) {
  for (const std::uint64_t block : {72, 250}) expect_parts_round_as_the_whole(kCodec, block);
}

TEST(Int4, ASteadyGradientFarBelowTheLargestIsSent) { expect_a_steady_gradient_is_sent(kCodec); }

TEST(Int4, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) { expect_bad_values_stay_in_their_block(kCodec); }

TEST(Int4, ABlockOfZerosHasScaleZero) { expect_zeros_have_scale_zero(kCodec); }

}  // namespace

}  // namespace octavo::conformance
