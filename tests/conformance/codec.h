// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tests/conformance/conformance.h"

/// The body of every codec's conformance test: encode with all that an input may have, decode by assigning and adding.
namespace octavo::conformance {

struct CodecUnderTest {
  CodecKernels KernelTable::* kernels;
  std::uint64_t (*code_bytes)(std::uint64_t count);  // of one block
  bool scales;
  std::vector<std::uint64_t> blocks;
};

struct Encoded {
  Guarded<float> scales;
  Guarded<std::uint8_t> codes;
  Guarded<rules::Residual> next;
  Encoded(std::uint64_t blocks, std::uint64_t bytes, std::uint64_t count, std::uint64_t offset)
      : scales(blocks, offset), codes(bytes, offset), next(count, offset) {}
  Payload payload() { return {scales.data(), codes.data()}; }
};

struct Shape {
  std::uint64_t count, block, offset;
  bool momentum, others, residual, want_next;
};

inline std::vector<rules::Residual> residuals(std::uint64_t count, std::uint64_t seed) {
  std::vector<rules::Residual> kept;
  for (const float value : finite_values(count, seed)) kept.push_back(rules::to_residual(value, 0x8000));
  return kept;
}

inline void expect_codec_equals_reference(const CodecUnderTest& codec, const Shape& shape,
                                          const std::vector<float>& values) {
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
  input.first = (1ULL << 38) - 128;  // where the numbers of the groups that draw begin again
  input = input.from(shape.offset);

  const std::uint64_t whole = shape.count / shape.block, rest = shape.count % shape.block;
  const std::uint64_t blocks = codec.scales ? whole + (rest != 0) : 0;
  const std::uint64_t bytes = whole * codec.code_bytes(shape.block) + codec.code_bytes(rest);
  Encoded expected(blocks, bytes, shape.want_next ? shape.count : 0, 0);
  Encoded got(blocks, bytes, shape.want_next ? shape.count : 0, shape.offset);
  const auto run = [&](const KernelTable& table, Encoded& to) {
    (table.*codec.kernels)
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

  for (const Store how : {Store::assign, Store::add, Store::uncached}) {
    Guarded<float> want(shape.count, 0), have(shape.count, shape.offset);
    std::copy_n(preconditioner.data(), shape.count, want.data());
    std::copy_n(preconditioner.data(), shape.count, have.data());
    (reference().*codec.kernels).decode({}, expected.payload(), shape.count, shape.block, how, want.data());
    (tested().*codec.kernels).decode({}, got.payload(), shape.count, shape.block, how, have.data());
    have.expect_same_bits(want);
    have.expect_untouched_around();
  }
}

/// Outputs larger than the caches, aligned to vectors and not, in every size of block.
inline void expect_large_codec_conforms(const CodecUnderTest& codec) {
  for (const std::uint64_t block : codec.blocks) {
    for (const std::uint64_t offset : {0, 1}) {
      const Shape shape{kLargeCount, block, offset, true, true, true, codec.scales};
      expect_codec_equals_reference(codec, shape, finite_values(kLargeCount + offset, 9));
    }
  }
}

inline void expect_codec_conforms(const CodecUnderTest& codec) {
  for (const std::uint64_t block : codec.blocks) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) {
        for (unsigned has = 0; has < 16; ++has) {
          const Shape shape{count, block, offset, (has & 1) != 0, (has & 8) != 0, (has & 2) != 0, (has & 4) != 0};
          expect_codec_equals_reference(codec, shape, finite_values(count + offset, count + block));
          if (::testing::Test::HasFatalFailure()) return;
        }
        const Shape plain{count, block, offset, false, false, true, codec.scales};
        expect_codec_equals_reference(codec, plain, any_values(count + offset, count + block));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  expect_large_codec_conforms(codec);
}

/// The rounding of a residual depends on the number of its element, not on the part of a tensor that is encoded.
inline void expect_parts_round_as_the_whole(const CodecUnderTest& codec, std::uint64_t block) {
  constexpr std::uint64_t kBlocks = 5;
  const auto values = finite_values(kBlocks * block, 4);
  EncodeInput input{values.data()};
  input.rounding_key = 77;
  Encoded whole(kBlocks, kBlocks * codec.code_bytes(block), values.size(), 0);
  (tested().*codec.kernels).encode({}, input, values.size(), block, whole.payload(), whole.next.data());
  Encoded parts(kBlocks, kBlocks * codec.code_bytes(block), values.size(), 0);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const Payload payload{parts.scales.data() + i, parts.codes.data() + i * codec.code_bytes(block)};
    (tested().*codec.kernels).encode({}, input.from(i * block), block, block, payload, parts.next.data() + i * block);
  }
  parts.next.expect_same_bits(whole.next);
}

/// A gradient of 1/20000 of its block's largest, step after step: nearly all of it is sent, and the rest is kept.
inline void expect_a_steady_gradient_is_sent(const CodecUnderTest& codec) {
  constexpr std::uint64_t kBlock = 256, kSteps = 20000;
  std::vector<float> gradient(kBlock, 1.0F / kSteps), decoded(kBlock);  // 1 in all
  for (std::uint64_t i = 0; i < kBlock; i += 2) gradient[i] = 1.0F;
  Encoded to(1, codec.code_bytes(kBlock), kBlock, 0);
  std::vector<rules::Residual> residual(kBlock);
  double sent = 0, kept = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    EncodeInput input{gradient.data(), residual.data()};
    input.rounding_key = rules::derive_key(1, step);
    const CodecKernels& kernels = tested().*codec.kernels;
    kernels.encode({}, input, kBlock, kBlock, to.payload(), to.next.data());
    kernels.decode({}, to.payload(), kBlock, kBlock, Store::assign, decoded.data());
    std::copy_n(to.next.data(), kBlock, residual.data());
    for (std::uint64_t i = 1; i < kBlock; i += 2) sent += static_cast<double>(decoded[i]);
  }
  for (std::uint64_t i = 1; i < kBlock; i += 2) kept += static_cast<double>(rules::from_residual(residual[i]));
  EXPECT_NEAR((sent + kept) / (kBlock / 2), 1.0, 0.05) << "sent " << sent << ", kept " << kept;
  EXPECT_GT(sent / (kBlock / 2), 0.4);
}

/// decoded + next residual is the value that was encoded, but for the rounding of the residual: nothing is lost.
inline void expect_nothing_lost(const CodecUnderTest& codec, std::uint64_t block) {
  constexpr std::uint64_t kCount = 5000;
  const auto values = finite_values(kCount, 3);
  Encoded to(kCount / block + 1, kCount * 4 + 64, kCount, 0);
  (tested().*codec.kernels).encode({}, {values.data()}, kCount, block, to.payload(), to.next.data());
  std::vector<float> decoded(kCount);
  (tested().*codec.kernels).decode({}, to.payload(), kCount, block, Store::assign, decoded.data());
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float left_over = values[i] - decoded[i];
    ASSERT_NEAR(rules::from_residual(to.next.data()[i]), left_over, std::ldexp(std::abs(left_over), -7) + 0x1p-133F)
        << i;
  }
}

/// A NaN or an infinity makes its block's scale NaN and its residual 0, and touches no other block.
inline void expect_bad_values_stay_in_their_block(const CodecUnderTest& codec) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    auto values = finite_values(512, 1);
    values[300] = bad;
    Encoded to(2, 512, 512, 0);
    (tested().*codec.kernels).encode({}, {values.data()}, 512, 256, to.payload(), to.next.data());
    EXPECT_FALSE(std::isnan(to.scales.data()[0]));
    EXPECT_TRUE(std::isnan(to.scales.data()[1]));
    for (int i = 256; i < 512; ++i) ASSERT_EQ(rules::from_residual(to.next.data()[i]), 0.0F);
  }
}

inline void expect_zeros_have_scale_zero(const CodecUnderTest& codec) {
  const std::vector<float> zeros(100);
  Encoded to(1, 100, 100, 0);
  (tested().*codec.kernels).encode({}, {zeros.data()}, 100, 256, to.payload(), to.next.data());
  EXPECT_EQ(to.scales.data()[0], 0.0F);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(rules::from_residual(to.next.data()[i]), 0.0F);
}

}  // namespace octavo::conformance
