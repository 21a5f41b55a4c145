// SPDX-License-Identifier: Apache-2.0
// threshold, bf16:lossless and fp16:lossless as codecs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "octavo/codec/registry.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

struct Trip {
  at::Tensor decoded;
  std::uint64_t bytes;  // the number of bytes that are sent
};

/// Encodes, packs, unpacks and decodes.
Trip through(const Codec& codec, const at::Tensor& values) {
  const auto count = static_cast<std::uint64_t>(values.numel());
  std::vector<std::uint32_t> payload(codec.payload_bytes(count) / 4 + 1), packed(payload.size()), got(payload.size());
  const auto bytes_of = [](std::vector<std::uint32_t>& words) { return reinterpret_cast<std::uint8_t*>(words.data()); };
  codec.encode(c10::kCPU, {values.const_data_ptr<float>()}, {bytes_of(payload), count, {0, count}}, nullptr);
  const std::uint64_t bytes = codec.pack(bytes_of(payload), count, bytes_of(packed));
  EXPECT_LE(bytes, codec.payload_bytes(count));
  EXPECT_EQ(codec.unpack({bytes_of(packed), bytes}, count, bytes_of(got)), bytes);
  at::Tensor decoded = at::full_like(values, -77);
  codec.decode(c10::kCPU, {bytes_of(got), count, {0, count}}, Store::assign, decoded.mutable_data_ptr<float>(),
               nullptr);
  return {decoded, bytes};
}

at::Tensor heavy_tailed(std::int64_t count) {
  at::Tensor values = at::empty({count});
  std::mt19937 random(5);
  std::student_t_distribution<float> draw(3);
  for (std::int64_t i = 0; i < count; ++i) values.mutable_data_ptr<float>()[i] = draw(random);
  return values;
}

TEST(Lossless, DecodesToWhatThePlainCodecDoes) {
  for (const char* name : {"bf16", "fp16"}) {
    const CodecPtr plain = make_codec(name), packing = make_codec(std::string(name) + ":lossless");
    for (const std::int64_t count : {0, 1, 1023, 1024, 1025, 100001}) {
      at::Tensor values = heavy_tailed(count);
      if (count > 10) {
        values[3].fill_(std::nanf(""));
        values[7].fill_(-std::numeric_limits<float>::infinity());
        values[9].fill_(1e-40F);
      }
      const Trip packed = through(*packing, values), expected = through(*plain, values);
      const at::Tensor have = packed.decoded.view(at::kInt), want = expected.decoded.view(at::kInt);
      EXPECT_TRUE(at::equal(have, want)) << name << ", " << count << " values";
      if (count > 10000) {
        EXPECT_LT(static_cast<double>(packed.bytes), (name[0] == 'b' ? 0.72 : 0.92) * expected.bytes);
      }
    }
  }
}

TEST(Threshold, SendsWhatIsAboveTheFactorTimesTheRootOfTheMeanSquare) {
  const at::Tensor values = heavy_tailed(50000);
  const double rms = std::sqrt(values.to(at::kDouble).square().mean().item<double>());
  for (const auto& [factor, text] : {std::pair(1.0, "threshold:1"), {2.0, "threshold:2"}, {3.5, "threshold:3.5"}}) {
    const CodecPtr codec = make_codec(text);
    const at::Tensor expected = at::where(values.abs() > factor * rms, values, at::zeros({}));
    const Trip trip = through(*codec, values);
    EXPECT_TRUE(at::equal(trip.decoded, expected)) << factor;
    const auto sent = static_cast<std::uint64_t>(expected.count_nonzero().item<std::int64_t>());
    EXPECT_GT(trip.bytes, 4 * sent);
    EXPECT_LT(trip.bytes, 6 * sent + 64);
  }
}

/// Without feedback this is Chebyshev's inequality. With feedback the threshold ignores what is fed back.
TEST(Threshold, AtMostOneOfTheFactorsSquareIsSentTheLargestFirst) {
  const CodecPtr codec = make_codec("threshold:4");
  at::Tensor gradient = at::full({16000}, 1e-3), residual = at::full({16000}, 1, at::kBFloat16);
  residual.slice(0, 0, 500).fill_(2);
  std::vector<std::uint32_t> payload(codec->payload_bytes(16000) / 4 + 1), packed(payload.size());
  auto* const bytes = reinterpret_cast<std::uint8_t*>(payload.data());
  EncodeInput input{gradient.const_data_ptr<float>()};
  input.residual = reinterpret_cast<const rules::Residual*>(residual.const_data_ptr<at::BFloat16>());
  codec->encode(c10::kCPU, input, {bytes, 16000, {0, 16000}}, nullptr);
  at::Tensor decoded = at::empty({16000});
  codec->decode(c10::kCPU, {bytes, 16000, {0, 16000}}, Store::assign, decoded.mutable_data_ptr<float>(), nullptr);
  EXPECT_EQ(decoded.count_nonzero().item<std::int64_t>(), 1000);
  EXPECT_TRUE(at::all(decoded.slice(0, 0, 1000) != 0).item<bool>());
  EXPECT_TRUE(at::all(decoded.slice(0, 0, 500) > 2).item<bool>());
  EXPECT_LE(codec->pack(bytes, 16000, reinterpret_cast<std::uint8_t*>(packed.data())), codec->payload_bytes(16000));
}

TEST(Threshold, AConstantTensorAndOneOfZerosSendOneValue) {
  const CodecPtr codec = make_codec("threshold:1.5");
  for (const double value : {0.0, 1.0, 1e-30}) {
    const Trip trip = through(*codec, at::full({10000}, value, at::kFloat));
    EXPECT_LE(trip.decoded.count_nonzero().item<std::int64_t>(), value == 1e-30 ? 4445 : 1);
    EXPECT_FLOAT_EQ(trip.decoded[0].item<float>(), static_cast<float>(value));
  }
}

TEST(Threshold, WhatIsNotFiniteIsSent) {
  const CodecPtr codec = make_codec("threshold:3");
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    at::Tensor values = heavy_tailed(10000);
    values[777].fill_(bad);
    values[9999].fill_(bad);
    const at::Tensor decoded = through(*codec, values).decoded;
    EXPECT_EQ(decoded.isfinite().logical_not().sum().item<std::int64_t>(), 2);
    EXPECT_FALSE(std::isfinite(decoded[777].item<float>()));
  }
}

/// The bound holds for every number of values up to 200, although words are rounded up in each part of a payload.
TEST(Lossless, NoNumberOfValuesNeedsMoreThanTheBound) {
  std::mt19937 random(3);
  for (const char* text : {"bf16:lossless", "fp16:lossless"}) {
    const CodecPtr codec = make_codec(text);
    for (std::int64_t count = 1; count <= 200; ++count) {
      for (const double spread : {1.0, 1e3, 1e6}) {  // exponents that differ need the most bytes
        at::Tensor values = at::empty({count});
        std::uniform_real_distribution<double> exponent(-std::log(spread), std::log(spread));
        for (std::int64_t i = 0; i < count; ++i) {
          values.mutable_data_ptr<float>()[i] =
              static_cast<float>(std::exp(exponent(random)) * (random() % 2 ? 1 : -1));
        }
        EXPECT_LE(through(*codec, values).bytes, codec->payload_bytes(static_cast<std::uint64_t>(count))) << count;
      }
    }
  }
}

TEST(Threshold, NoNumberOfValuesNeedsMoreThanTheBound) {
  for (const std::int64_t count : {1, 31, 64, 1000, 4097}) {
    for (const char* text : {"threshold:1", "threshold:2:sign", "threshold:1.3:int4"}) {
      const CodecPtr codec = make_codec(text);
      for (std::int64_t large = 0; large <= count; large += 1 + count / 200) {
        at::Tensor values = at::full({count}, 1e-3);
        values.slice(0, 0, large).fill_(1);
        EXPECT_LE(through(*codec, values).bytes, codec->payload_bytes(static_cast<std::uint64_t>(count)));
      }
    }
  }
}

/// Returns the rounds of each codec, which OCTAVO_FUZZ_ROUNDS sets.
int fuzz_rounds() {
  const char* const wanted = std::getenv("OCTAVO_FUZZ_ROUNDS");
  return wanted ? std::atoi(wanted) : 2000;
}

/// Returns some values as `codec` packs them, then cut off, made longer, or with some bytes changed.
std::vector<std::uint8_t> nearly_packed(const Codec& codec, std::uint64_t count, std::mt19937& random) {
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(static_cast<int>(random())) * (random() % 50 == 0 ? 1e-4F : 1e-8F);
  std::vector<std::uint32_t> payload(codec.payload_bytes(count) / 4 + 1), packed(payload.size());
  EncodeInput input = {values.data()};
  input.estimate = random() % 2 == 0 ? values.data() : nullptr;
  codec.encode(c10::kCPU, input, {reinterpret_cast<std::uint8_t*>(payload.data()), count, {0, count}}, nullptr);
  auto* const begin = reinterpret_cast<std::uint8_t*>(packed.data());
  std::vector<std::uint8_t> bytes(begin,
                                  begin + codec.pack(reinterpret_cast<std::uint8_t*>(payload.data()), count, begin));
  if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
  for (std::uint32_t changes = random() % 6; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t place =
        random() % 2 == 0 ? random() % std::min<std::size_t>(bytes.size(), 16) : random() % bytes.size();
    bytes[place] = static_cast<std::uint8_t>(random() % 3 == 0 ? random() : random() % 3);
  }
  return bytes;
}

class PackingFuzz : public ::testing::TestWithParam<const char*> {};

/// Bytes that no codec packed are either refused or become a payload that can be decoded.
TEST_P(PackingFuzz, AnyBytesAreRefusedOrDecoded) {
  const std::string text = GetParam();
  const CodecPtr codec = make_codec(text);
  const bool begins_with_a_word = text[0] == 't' || text[0] == 'l';
  const std::uint64_t most = text[0] == 'l' ? 36000 : 12000;  // several tiles in some rounds
  std::mt19937 random(8);
  for (int round = fuzz_rounds(); round > 0; --round) {
    const std::uint64_t count = random() % (random() % 64 == 0 ? most : 3000);
    std::vector<std::uint8_t> packed;
    if (round % 2 == 0) {
      packed = nearly_packed(*codec, count, random);
    } else {
      packed.resize(random() % (codec->payload_bytes(count) + 8));
      for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(random() % 3 == 0 ? random() : 1);
      if (packed.size() > 4 && begins_with_a_word) packed[1] = packed[2] = packed[3] = 0;
    }
    packed.shrink_to_fit();
    std::vector<std::uint8_t> payload(codec->payload_bytes(count));
    const auto bytes = codec->unpack(packed, count, payload.data());
    if (!bytes) continue;
    ASSERT_LE(*bytes, packed.size());
    ASSERT_LE(codec->reused(payload.data(), count), count);
    std::vector<float> out(count);
    codec->decode(c10::kCPU, {payload.data(), count, {0, count}}, Store::assign, out.data(), nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackingFuzz,
                         ::testing::Values("bf16:lossless", "fp16:lossless", "threshold:2", "threshold:1:sign",
                                           "lsh:int4", "lsh:topk:0.05", "lsh:bf16:lossless", "lsh:threshold:3:int8"));

TEST(PackingCodecs, TextsThatMakeNone) {
  for (const char* text : {"threshold", "threshold:0.5", "threshold:nan", "threshold:3:sign-vote",
                           "threshold:3:dense:1", "int8:lossless", "bf16:lossless:2", "bf16:loss"}) {
    EXPECT_THROW(make_codec(text), Error) << text;
  }
  EXPECT_EQ(make_codec("threshold:3.50:int4")->text(), "threshold:3.5:int4");
  EXPECT_EQ(make_codec("fp16:lossless")->text(), "fp16:lossless");
}

}  // namespace

}  // namespace octavo
