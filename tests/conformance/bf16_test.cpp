// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/bf16.h"

#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

std::uint64_t code_bytes(std::uint64_t count) { return 2 * count; }
const CodecUnderTest kCodec = {&KernelTable::bf16, code_bytes, false, {1U << 18}};

TEST(Bf16, EqualsReference) { expect_codec_conforms(kCodec); }

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(rules::to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(rules::to_bf16(rules::from_bits(0x3F808000)).bits, 0x3F80);  // a tie goes to even, down
  EXPECT_EQ(rules::to_bf16(rules::from_bits(0x3F818000)).bits, 0x3F82);  // and up
  EXPECT_EQ(rules::to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(rules::from_bf16(rules::to_bf16(rules::from_bits(0x7F800001)))));
}

}  // namespace

}  // namespace octavo::conformance
