// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/scaled_sign.h"

#include "octavo/rules/sign_bits.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

const CodecUnderTest kCodec = {
    &KernelTable::scaled_sign, rules::packed_sign_bytes, true, {64, 256, 1000, 4096, 5000, 1U << 19}};

TEST(ScaledSign, EqualsReference) { expect_codec_conforms(kCodec); }

TEST(ScaledSign, NothingIsLost) { expect_nothing_lost(kCodec, 256); }

TEST(ScaledSign, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) { expect_bad_values_stay_in_their_block(kCodec); }

TEST(ScaledSign, ABlockOfZerosHasScaleZero) { expect_zeros_have_scale_zero(kCodec); }

}  // namespace

}  // namespace octavo::conformance
