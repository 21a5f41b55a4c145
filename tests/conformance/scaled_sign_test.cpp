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

TEST(ScaledSign, PartsRoundAsTheWhole) {
  for (const std::uint64_t block : {72, 250}) expect_parts_round_as_the_whole(kCodec, block);
}

TEST(ScaledSign, ASteadyGradientFarBelowTheLargestIsSent) { expect_a_steady_gradient_is_sent(kCodec); }

TEST(ScaledSign, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) { expect_bad_values_stay_in_their_block(kCodec); }

/// Without fp64, which not every device has.
TEST(ScaledSign, TheScaleOfAWideBlockIsExact) {
  constexpr std::uint64_t kCount = 1U << 24;
  std::mt19937 random(6);
  std::vector<float> values(kCount);
  double sum = 0;
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random()), -32 - static_cast<int>(random() % 8));
    sum += static_cast<double>(value);
  }
  Encoded to(1, kCodec.code_bytes(kCount), 0, 0);
  tested().scaled_sign.encode({}, {values.data()}, kCount, kCount, to.payload(), nullptr);
  EXPECT_NEAR(static_cast<double>(to.scales.data()[0]) * kCount / sum, 1.0, 2e-7);
}

TEST(ScaledSign, ABlockOfZerosHasScaleZero) { expect_zeros_have_scale_zero(kCodec); }

}  // namespace

}  // namespace octavo::conformance
