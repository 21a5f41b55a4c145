// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "octavo/rules/block_codecs.h"
#include "tests/conformance/codec.h"

/// Every block codec: it encodes inputs with everything that an input may have, and decodes by assigning and by adding.
namespace octavo::conformance {

namespace {

struct Shape {
  std::uint64_t count, block, offset;
  bool momentum, others, residual, want_next;
};

std::vector<rules::Residual> residuals(std::uint64_t count, std::uint64_t seed) {
  std::vector<rules::Residual> kept;
  for (const float value : finite_values(count, seed)) kept.push_back(rules::to_residual(value, 0x8000));
  return kept;
}

void expect_codec_equals_reference(const CodecUnderTest& codec, const Shape& shape, const std::vector<float>& values) {
  SCOPED_TRACE(::testing::Message() << "count " << shape.count << " block " << shape.block << " offset " << shape.offset
                                    << " momentum " << shape.momentum << " others " << shape.others << " residual "
                                    << shape.residual);
  const auto momentum = finite_values(shape.count + shape.offset, 11);
  const auto residual = residuals(shape.count + shape.offset, 12);
  const auto preconditioner = finite_values(shape.count + shape.offset, 13);
  const auto others = finite_values(shape.count + shape.offset, 14);
  EncodeInput input{values.data()};
  if (shape.residual) input.residual = residual.data();
  if (shape.momentum) input.momentum = momentum.data();
  if (shape.momentum) input.preconditioner = preconditioner.data();
  if (shape.others) input.others = others.data();
  input.gradient_weight = shape.momentum ? 0.1F : 0.5F;
  input.momentum_weight = 0.9F;
  input.sum_weight = 0.3F;
  input.rounding_key = rules::derive_key(shape.count, shape.block);
  input.stochastic = shape.others;
  input.first = (1ULL << 38) - 128;  // from here on the counter of the groups that draw random bits begins again
  input = input.from(shape.offset);

  const std::uint64_t blocks = codec.blocks(shape.count, shape.block), bytes = codec.bytes(shape.count, shape.block);
  Encoded expected(blocks, bytes, shape.want_next ? shape.count : 0, 0);
  Encoded got(blocks, bytes, shape.want_next ? shape.count : 0, shape.offset);
  const auto run = [&](const KernelTable& table, Encoded& to) {
    table.of(codec.codec)
        .encode({}, input, shape.count, shape.block, to.payload(), shape.want_next ? to.next.data() : nullptr);
  };
  run(reference(), expected);
  run(tested(), got);
  got.scales.expect_same_bits(expected.scales);
  got.codes.expect_same_bits(expected.codes);
  got.next.expect_same_bits(expected.next);
  got.scales.expect_untouched_around();
  got.codes.expect_untouched_around();
  got.next.expect_untouched_around();

  expect_same_results(shape.count, shape.offset,
                      [&](const KernelTable& table, Store how, float* out, std::uint32_t* nonfinite) {
                        Encoded& from = &table == &tested() ? got : expected;
                        table.of(codec.codec).decode({}, from.payload(), shape.count, shape.block, how, out, nonfinite);
                      });
}

/// Block sizes of less than a group, of several chunks, and some that are a multiple of neither.
const std::vector<std::uint64_t> kBlocks = {8, 16, 24, 32, 48, 64, 256, 1000, 4096, 5000, 1U << 19};

std::vector<std::uint64_t> blocks_of(const CodecUnderTest& codec) {
  // without scales, blocks only divide the work
  return codec.has_scale ? kBlocks : std::vector<std::uint64_t>{1U << 18};
}

/// Tests outputs larger than the caches, aligned to vectors and not.
void expect_large_codec_conforms(const CodecUnderTest& codec, std::uint64_t block) {
  for (const std::uint64_t offset : {0, 1}) {
    const Shape shape{kLargeCount, block, offset, true, true, true, true};
    expect_codec_equals_reference(codec, shape, finite_values(kLargeCount + offset, 9));
  }
}

/// Whether a codec's loops are tested with every kind of input. The other codecs share these loops.
bool is_tested_wholly(const CodecUnderTest& codec) {
  return codec.codec == BlockCodec::int4 || (codec.codec == BlockCodec::sign && !compiles_kernels());
}

/// Whether a codec is tested further than by comparison with the reference.
bool is_looked_at(const CodecUnderTest& codec) { return is_tested_wholly(codec) || !compiles_kernels(); }

/// Returns what an input may have, as bits: momentum, residual, next residual, others.
std::vector<unsigned> kinds_of_input(const CodecUnderTest& codec) {
  if (!is_looked_at(codec)) return {15};
  if (!is_tested_wholly(codec)) return {4, 15};
  std::vector<unsigned> all(16);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<std::uint64_t> offsets(const CodecUnderTest& codec) {
  return is_tested_wholly(codec) ? kOffsets : std::vector<std::uint64_t>{0, 1, 13};
}

/// Tests each kind of input at each count, at one of the offsets; the next count or block uses another offset. What an
/// input has, how blocks are cut and where memory begins are handled by separate code. Over all blocks, each kind is
/// tested at each offset and every count.
void expect_codec_conforms(const CodecUnderTest& codec, std::uint64_t block) {
  const std::vector<std::uint64_t> starts = offsets(codec);
  for (const std::uint64_t count : kCounts) {
    const auto offset_for = [&](unsigned kind) { return starts[(count + block + kind) % starts.size()]; };
    for (const unsigned has : kinds_of_input(codec)) {
      const std::uint64_t offset = offset_for(has);
      const Shape shape{count, block, offset, (has & 1) != 0, (has & 8) != 0, (has & 2) != 0, (has & 4) != 0};
      expect_codec_equals_reference(codec, shape, finite_values(count + offset, count + block));
      if (::testing::Test::HasFatalFailure()) return;
    }
    const bool all = !is_looked_at(codec);  // an input with everything: the kernels for it are compiled already
    const std::uint64_t offset = offset_for(16);
    const Shape with_nan{count, block, offset, all, all, all, true};
    const bool has_nans = codec.has_scale || !has_one_nan();
    const auto values = has_nans ? any_values(count + offset, count + block) : finite_values(count + offset, 9);
    expect_codec_equals_reference(codec, with_nan, values);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// Checks that the rounding of a residual depends on the element's number, not on the part of a tensor that is encoded.
void expect_parts_round_as_the_whole(const CodecUnderTest& codec, std::uint64_t block) {
  constexpr std::uint64_t kBlocks = 5;
  const auto values = finite_values(kBlocks * block, 4);
  EncodeInput input{values.data()};
  input.rounding_key = 77;
  input.stochastic = true;
  Encoded whole(kBlocks, kBlocks * codec.code_bytes(block), values.size(), 0);
  tested().of(codec.codec).encode({}, input, values.size(), block, whole.payload(), whole.next.data());
  Encoded parts(kBlocks, kBlocks * codec.code_bytes(block), values.size(), 0);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const Payload payload{parts.scales.data() + i, parts.codes.data() + i * codec.code_bytes(block)};
    tested().of(codec.codec).encode({}, input.from(i * block), block, block, payload, parts.next.data() + i * block);
  }
  parts.next.expect_same_bits(whole.next);
  parts.codes.expect_same_bits(whole.codes);
  parts.scales.expect_same_bits(whole.scales);
}

/// Checks gradients of 1/20000 of their block's largest over many steps: what is sent and what is kept add up to nearly
/// all of them, and a large part is sent.
void expect_a_steady_gradient_is_sent(const CodecUnderTest& codec) {
  constexpr std::uint64_t kBlock = 256, kSteps = 20000;
  // the elements of 1/20000 add up to 1 over all steps
  std::vector<float> gradient(kBlock, 1.0F / kSteps), decoded(kBlock);
  for (std::uint64_t i = 0; i < kBlock; i += 2) gradient[i] = 1.0F;
  Encoded to(1, codec.code_bytes(kBlock), kBlock, 0);
  std::vector<rules::Residual> residual(kBlock);
  double sent = 0, kept = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    EncodeInput input{gradient.data(), residual.data()};
    input.rounding_key = rules::derive_key(1, step);
    const CodecKernels& kernels = tested().of(codec.codec);
    kernels.encode({}, input, kBlock, kBlock, to.payload(), to.next.data());
    kernels.decode({}, to.payload(), kBlock, kBlock, Store::assign, decoded.data(), nullptr);
    std::copy_n(to.next.data(), kBlock, residual.data());
    for (std::uint64_t i = 1; i < kBlock; i += 2) sent += static_cast<double>(decoded[i]);
  }
  for (std::uint64_t i = 1; i < kBlock; i += 2) kept += static_cast<double>(rules::from_residual(residual[i]));
  EXPECT_NEAR((sent + kept) / (kBlock / 2), 1.0, 0.05) << "sent " << sent << ", kept " << kept;
  EXPECT_GT(sent / (kBlock / 2), 0.4);
}

/// Checks that decoded + next residual is the encoded value, except for the rounding of the residual: nothing is lost.
void expect_nothing_lost(const CodecUnderTest& codec, std::uint64_t block) {
  constexpr std::uint64_t kCount = 5000;
  const auto values = finite_values(kCount, 3);
  Encoded to(kCount / block + 1, kCount * 4 + 64, kCount, 0);
  tested().of(codec.codec).encode({}, {values.data()}, kCount, block, to.payload(), to.next.data());
  std::vector<float> decoded(kCount);
  tested().of(codec.codec).decode({}, to.payload(), kCount, block, Store::assign, decoded.data(), nullptr);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float left_over = values[i] - decoded[i];
    ASSERT_NEAR(rules::from_residual(to.next.data()[i]), left_over, std::ldexp(std::abs(left_over), -7) + 0x1p-133F)
        << i;
  }
}

/// Checks that a NaN or an infinity makes its block's scale NaN and its residual 0, and changes no other block.
void expect_bad_values_stay_in_their_block(const CodecUnderTest& codec) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    auto values = finite_values(512, 1);
    values[300] = bad;
    Encoded to(2, 512, 512, 0);
    tested().of(codec.codec).encode({}, {values.data()}, 512, 256, to.payload(), to.next.data());
    EXPECT_FALSE(std::isnan(to.scales.data()[0]));
    EXPECT_TRUE(std::isnan(to.scales.data()[1]));
    for (int i = 256; i < 512; ++i) ASSERT_EQ(rules::from_residual(to.next.data()[i]), 0.0F);
  }
}

void expect_zeros_stay_zeros(const CodecUnderTest& codec) {
  const std::vector<float> zeros(100);
  Encoded to(codec.blocks(100, 256), codec.bytes(100, 256), 100, 0);
  tested().of(codec.codec).encode({}, {zeros.data()}, 100, 256, to.payload(), to.next.data());
  std::vector<float> decoded(100, 1.0F);
  tested().of(codec.codec).decode({}, to.payload(), 100, 256, Store::assign, decoded.data(), nullptr);
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_EQ(decoded[i], 0.0F);
    ASSERT_EQ(rules::from_residual(to.next.data()[i]), 0.0F);
  }
}

class BlockCodecTest : public ::testing::TestWithParam<CodecUnderTest> {};

TEST_P(BlockCodecTest, EqualsReference) {
  for (const std::uint64_t block : blocks_of(GetParam())) expect_codec_conforms(GetParam(), block);
}

TEST_P(BlockCodecTest, LargeOutputsEqualReference) {
  const std::vector<std::uint64_t> narrow_and_wide = {64, 1U << 18};
  // small, odd, one group, several chunks, wide
  const std::vector<std::uint64_t> of_each_loop = {8, 24, 64, 5000, 1U << 19};
  for (const std::uint64_t block : is_tested_wholly(GetParam()) ? of_each_loop : narrow_and_wide) {
    expect_large_codec_conforms(GetParam(), block);
  }
}

TEST_P(BlockCodecTest, PartsRoundAsTheWhole) {
  if (!GetParam().has_scale || !is_looked_at(GetParam())) return;
  for (const std::uint64_t block : {72, 250}) expect_parts_round_as_the_whole(GetParam(), block);
}

TEST_P(BlockCodecTest, NothingIsLost) {
  if (GetParam().leaves_error && is_looked_at(GetParam())) expect_nothing_lost(GetParam(), 256);
}

TEST_P(BlockCodecTest, ASteadyGradientFarBelowTheLargestIsSent) {
  if (is_tested_wholly(GetParam())) expect_a_steady_gradient_is_sent(GetParam());
}

TEST_P(BlockCodecTest, ANonFiniteValueMakesItsBlockNaNAndLeavesNoResidual) {
  if (GetParam().has_scale && is_looked_at(GetParam())) expect_bad_values_stay_in_their_block(GetParam());
}

TEST_P(BlockCodecTest, ABlockOfZerosDecodesToZeros) {
  if (is_looked_at(GetParam())) expect_zeros_stay_zeros(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, BlockCodecTest, ::testing::ValuesIn(all_codecs()),
                         [](const auto& codec) { return std::string(codec.param.name); });

/// Over many draws, each value is decoded to itself on average; rounding to nearest would miss it by 0.4 of a step.
TEST(SymmetricInt, StochasticRoundingIsUnbiased) {
  constexpr std::uint64_t kCount = 4096;
  for (const CodecUnderTest& codec : all_codecs()) {
    if (!codec.dithers || !is_looked_at(codec)) continue;
    const float step = 1.0F / static_cast<float>((1U << (codec.code_bytes(8) - 1)) - 1);
    std::vector<float> values(kCount, 0.4F * step), decoded(kCount);
    values[0] = 1.0F;  // determines the scale
    Encoded to(1, codec.code_bytes(kCount), kCount, 0);
    EncodeInput input{values.data()};
    input.rounding_key = 5;
    for (const bool stochastic : {true, false}) {
      input.stochastic = stochastic;
      tested().of(codec.codec).encode({}, input, kCount, kCount, to.payload(), to.next.data());
      tested().of(codec.codec).decode({}, to.payload(), kCount, kCount, Store::assign, decoded.data(), nullptr);
      double sum = 0;
      for (std::uint64_t i = 1; i < kCount; ++i) sum += static_cast<double>(decoded[i]);
      const double expected = stochastic ? 0.4 : 0.0;
      EXPECT_NEAR(sum / (kCount - 1) / static_cast<double>(step), expected, 0.04) << codec.name;
    }
  }
}

TEST(SymmetricInt, TheLargestValueKeepsItsCodeWithEveryDither) {
  using Int8 = RuleOf<BlockCodec::int8>::type;
  using Int4 = RuleOf<BlockCodec::int4>::type;
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const float largest = std::ldexp(1.0F + static_cast<float>(random() % (1U << 23)) * 0x1p-23F, 1);
    for (const std::uint32_t bits : {0x0000U, 0xFFFFU}) {
      for (const float value : {largest, -largest}) {
        ASSERT_LT(Int8::code(value, Int8::scale(largest), rules::dither(bits)), 256U) << value << " " << bits;
        ASSERT_GE(Int8::code(value, Int8::scale(largest), rules::dither(bits)), 1U) << value << " " << bits;
        ASSERT_LT(Int4::code(value, Int4::scale(largest), rules::dither(bits)), 16U) << value << " " << bits;
      }
    }
  }
}

/// A block with a value of 2^126 or more is marked as not finite instead of being sent; a smaller value is decoded to
/// something finite.
TEST(BlockCodecs, HugeBlocksAreSentOrNot) {
  for (const CodecUnderTest& codec : all_codecs()) {
    if (!codec.has_scale || !is_looked_at(codec)) continue;
    for (const float value : {0x1p126F, std::nextafter(0x1p126F, 0.0F)}) {
      Encoded to(1, codec.code_bytes(1), 1, 0);
      float decoded = 0;
      std::uint32_t nonfinite = 0;
      tested().of(codec.codec).encode({}, {&value}, 1, 64, to.payload(), to.next.data());
      tested().of(codec.codec).decode({}, to.payload(), 1, 64, Store::assign, &decoded, &nonfinite);
      EXPECT_EQ(nonfinite, value < 0x1p126F ? 0U : 1U) << codec.name << " " << value;
      EXPECT_EQ(std::isfinite(decoded), value < 0x1p126F) << codec.name << " " << value;
      EXPECT_TRUE(std::isfinite(rules::from_residual(to.next.data()[0]))) << codec.name;
    }
  }
}

/// The scale is exact without fp64, which not every device has.
TEST(ScaledSign, TheScaleOfAWideBlockIsExact) {
  constexpr std::uint64_t kCount = 1U << 24;
  std::mt19937 random(6);
  std::vector<float> values(kCount);
  double sum = 0;
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random()), -32 - static_cast<int>(random() % 8));
    sum += static_cast<double>(value);
  }
  Encoded to(1, rules::packed_sign_bytes(kCount), 0, 0);
  tested().of(BlockCodec::sign).encode({}, {values.data()}, kCount, kCount, to.payload(), nullptr);
  EXPECT_NEAR(static_cast<double>(to.scales.data()[0]) * kCount / sum, 1.0, 2e-7);
}

TEST(MajorityVote, AZeroOfEitherSignAbstains) {
  const std::vector<float> values = {2, 0.0F, -2, -0.0F, 1e-41F, -1e-41F};
  const std::vector<float> expected = {1, 0, -1, 0, 1, -1};
  Encoded to(1, 2, 0, 0);
  const CodecKernels& vote = tested().of(BlockCodec::sign_vote);
  vote.encode({}, {values.data()}, values.size(), 64, to.payload(), nullptr);
  std::vector<float> votes(values.size());
  vote.decode({}, to.payload(), values.size(), 64, Store::assign, votes.data(), nullptr);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(votes[i], expected[i]) << i;
    EXPECT_FALSE(expected[i] == 0 && std::signbit(votes[i])) << i;
  }
}

TEST(Bfloat16, RoundsToNearestEven) {
  EXPECT_EQ(rules::to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(rules::to_bf16(rules::from_bits(0x3F808000)).bits, 0x3F80);  // a tie is rounded to even: here down
  EXPECT_EQ(rules::to_bf16(rules::from_bits(0x3F818000)).bits, 0x3F82);  // here up
  EXPECT_EQ(rules::to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(rules::from_bf16(rules::to_bf16(rules::from_bits(0x7F800001)))));
}

}  // namespace

}  // namespace octavo::conformance
