// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/int4.h"

#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

const CodecUnderTest kCodec = {&KernelTable::int4, rules::packed_int4_bytes, true, {2, 64, 256, 1000}};

TEST(Int4, EqualsReference) { expect_codec_conforms(kCodec); }

TEST(Int4, NothingIsLost) { expect_nothing_lost(kCodec, 256, 1e-6F); }

TEST(Int4, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    auto values = finite_values(512, 1);
    values[300] = bad;
    Encoded to(2, 512, 512, 0);
    (tested().*kCodec.kernels).encode(nullptr, {values.data()}, 512, 256, to.payload(), to.next.data());
    EXPECT_FALSE(std::isnan(to.scales.data()[0]));
    EXPECT_TRUE(std::isnan(to.scales.data()[1]));
    for (int i = 256; i < 512; ++i) ASSERT_EQ(to.next.data()[i], 0.0F);
  }
}

TEST(Int4, ABlockOfZerosHasScaleZero) {
  const std::vector<float> zeros(100);
  Encoded to(1, 100, 100, 0);
  (tested().*kCodec.kernels).encode(nullptr, {zeros.data()}, 100, 256, to.payload(), to.next.data());
  EXPECT_EQ(to.scales.data()[0], 0.0F);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(to.next.data()[i], 0.0F);
}

}  // namespace

}  // namespace octavo::conformance
