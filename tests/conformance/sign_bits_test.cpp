// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/sign_bits.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

TEST(SignBits, TheRuleOfTheDocument) {
  const float values[] = {1, -1, +0.0F, -0.0F, 2, -3, std::nanf(""), std::numeric_limits<float>::infinity()};
  std::uint8_t byte = 0;
  for (const KernelTable* table : {&reference(), &tested()}) {
    table->pack_sign_bits({}, values, 4, 8, &byte);
    EXPECT_EQ(byte, 0xAB) << table->name;
  }
}

TEST(SignBits, TailBitsAreZero) {
  const float ones[3] = {1, 1, 1};
  std::uint8_t byte = 0xFF;
  tested().pack_sign_bits({}, ones, 4, 3, &byte);
  EXPECT_EQ(byte, 0xE0);
}

class PackSignBits : public ::testing::TestWithParam<unsigned> {};

TEST_P(PackSignBits, EqualsReference) {
  const unsigned width = GetParam();
  std::mt19937_64 random(1);
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) {
      std::vector<std::uint8_t> raw((count + offset) * width);
      for (auto& byte : raw) byte = static_cast<std::uint8_t>(random());
      Guarded<std::uint8_t> expected(rules::packed_sign_bytes(count)), got(rules::packed_sign_bytes(count), offset);
      reference().pack_sign_bits({}, raw.data() + offset * width, width, count, expected.data());
      tested().pack_sign_bits({}, raw.data() + offset * width, width, count, got.data());
      SCOPED_TRACE(count);
      got.expect_same_bits(expected);
      got.expect_untouched_around();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PackSignBits, ::testing::Values(1U, 2U, 4U, 8U));

TEST(UnpackSignBits, ALargeOutputEqualsReference) {
  std::vector<std::uint8_t> bits(rules::packed_sign_bytes(kLargeCount));
  std::mt19937 random(2);
  for (auto& byte : bits) byte = static_cast<std::uint8_t>(random());
  for (const std::uint64_t offset : {0, 1}) {
    Guarded<float> expected(kLargeCount), got(kLargeCount, offset);
    reference().unpack_sign_bits({}, bits.data(), kLargeCount, expected.data());
    tested().unpack_sign_bits({}, bits.data(), kLargeCount, got.data());
    got.expect_same_bits(expected);
    got.expect_untouched_around();
  }
}

TEST(UnpackSignBits, EqualsReferenceAndGivesBackTheSigns) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) {
      const auto values = any_values(count, count);
      std::vector<std::uint8_t> bits(rules::packed_sign_bytes(count) + offset);
      tested().pack_sign_bits({}, values.data(), 4, count, bits.data() + offset);
      Guarded<float> expected(count), got(count, offset);
      reference().unpack_sign_bits({}, bits.data() + offset, count, expected.data());
      tested().unpack_sign_bits({}, bits.data() + offset, count, got.data());
      SCOPED_TRACE(count);
      got.expect_same_bits(expected);
      got.expect_untouched_around();
      for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(got.data()[i], std::signbit(values[i]) ? -1.0F : 1.0F);
    }
  }
}

}  // namespace

}  // namespace octavo::conformance
