// SPDX-License-Identifier: Apache-2.0
// Values that have hardly changed are not sent: which ones these are, what is sent, and what is refused.
#include "octavo/codec/lsh.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "octavo/codec/registry.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr auto kTile = static_cast<std::int64_t>(rules::kLshTile);

at::Tensor normal_values(std::int64_t count, std::uint64_t seed) {
  return at::randn({count}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Returns a vector of the same norm at this angle to `values`.
at::Tensor turned(const at::Tensor& values, double angle) {
  at::Tensor across = normal_values(values.numel(), 77);
  across -= values * (across.dot(values) / values.dot(values));
  across *= values.norm() / across.norm();
  return values * std::cos(angle) + across * std::sin(angle);
}

/// A payload, and what is sent of it.
struct LshTrip {
  std::vector<std::uint32_t> payload, packed;
  std::uint64_t bytes = 0, reused = 0;
  at::Tensor decoded;

  /// `estimate` is undefined where receivers have none.
  LshTrip(const Codec& codec, const at::Tensor& values, const at::Tensor& estimate, std::uint64_t key = 5) {
    const auto count = static_cast<std::uint64_t>(values.numel());
    const at::Tensor difference = estimate.defined() ? values - estimate : values;
    payload.resize(codec.payload_bytes(count) / 4);
    packed.resize(payload.size());
    EncodeInput input = {difference.const_data_ptr<float>()};
    input.estimate = estimate.defined() ? estimate.const_data_ptr<float>() : nullptr;
    codec.encode(c10::kCPU, input, {bytes_of(payload), count, {0, count}, key}, nullptr);
    reused = codec.reused(bytes_of(payload), count);
    bytes = codec.pack(bytes_of(payload), count, bytes_of(packed));
    EXPECT_LE(bytes, codec.payload_bytes(count));
    std::vector<std::uint32_t> got(payload.size(), 0xABABABAB);
    EXPECT_EQ(codec.unpack({bytes_of(packed), bytes}, count, bytes_of(got)), bytes);
    decoded = at::full_like(values, -77);
    codec.decode(c10::kCPU, {bytes_of(got), count, {0, count}, key}, Store::assign, decoded.mutable_data_ptr<float>(),
                 nullptr);
  }
  static std::uint8_t* bytes_of(std::vector<std::uint32_t>& words) {
    return reinterpret_cast<std::uint8_t*>(words.data());
  }
};

TEST(Lsh, OnlyTilesThatHaveChangedAreSent) {
  const CodecPtr codec = make_codec("lsh:dense");
  const std::int64_t count = 3 * kTile + 100;
  const at::Tensor estimate = normal_values(count, 1);
  at::Tensor values = estimate + 0.05 * normal_values(count, 2);
  EXPECT_EQ(LshTrip(*codec, values, estimate).reused, static_cast<std::uint64_t>(count));
  EXPECT_EQ(LshTrip(*codec, values, estimate).bytes, 4 * 4U);
  EXPECT_TRUE(at::equal(LshTrip(*codec, values, estimate).decoded, at::zeros({count})));
  values.slice(0, kTile, 2 * kTile).copy_(normal_values(kTile, 3));
  const LshTrip trip(*codec, values, estimate);
  EXPECT_EQ(trip.reused, static_cast<std::uint64_t>(count - kTile));
  EXPECT_EQ(trip.bytes, 4 * 4U + 4 * kTile);
  at::Tensor expected = at::zeros({count});
  expected.slice(0, kTile, 2 * kTile).copy_((values - estimate).slice(0, kTile, 2 * kTile));
  EXPECT_TRUE(at::equal(trip.decoded, expected));
}

TEST(Lsh, WhereReceiversHaveNothingAllIsSent) {
  const at::Tensor values = normal_values(2 * kTile + 7, 1);
  for (const char* inner : {"int4", "topk:0.01", "bf16:lossless"}) {
    const CodecPtr codec = make_codec("lsh:" + std::string(inner)), plain = make_codec(inner);
    EXPECT_EQ(LshTrip(*codec, values, {}).reused, 0U);
    for (const std::int64_t first : {std::int64_t{0}, kTile, 2 * kTile}) {
      const at::Tensor tile = values.slice(0, first, std::min(first + kTile, values.numel())).clone();
      const at::Tensor decoded = LshTrip(*codec, values, {}).decoded.slice(0, first, first + tile.numel());
      EXPECT_TRUE(at::equal(decoded, LshTrip(*plain, tile, {}).decoded)) << inner << " from " << first;
    }
  }
}

/// The hash distinguishes angles by its bits: of 256 bits, how many differ varies a little from step to step.
TEST(Lsh, TheShareOfBitsIsAnAngle) {
  const at::Tensor estimate = normal_values(kTile, 1);
  for (const double bits : {0.1, 0.25, 0.4}) {
    const CodecPtr codec = make_codec("lsh:" + std::to_string(bits) + ":dense");
    for (std::uint64_t key = 0; key < 20; ++key) {
      EXPECT_GT(LshTrip(*codec, turned(estimate, 0.7 * M_PI * bits), estimate, key).reused, 0U) << bits;
      EXPECT_EQ(LshTrip(*codec, turned(estimate, 1.3 * M_PI * bits), estimate, key).reused, 0U) << bits;
    }
  }
}

TEST(Lsh, AnotherSizeIsAChangeThoughNoBitIs) {
  const CodecPtr codec = make_codec("lsh:0.1:dense");
  const at::Tensor estimate = normal_values(kTile, 1);
  EXPECT_GT(LshTrip(*codec, 1.1 * estimate, estimate).reused, 0U);
  EXPECT_EQ(LshTrip(*codec, 2 * estimate, estimate).reused, 0U);
  EXPECT_EQ(LshTrip(*codec, 0.5 * estimate, estimate).reused, 0U);
}

TEST(Lsh, ASingleLargeValueIsAChangeThoughOneBitIs) {
  const CodecPtr codec = make_codec("lsh:dense");
  at::Tensor estimate = normal_values(kTile, 1), values = estimate.clone();
  estimate[33] = 1000;
  values[33] = -1000;
  EXPECT_EQ(LshTrip(*codec, values, estimate).reused, 0U);
}

TEST(Lsh, ZerosAreReusedAndWhatIsNotFiniteIsSent) {
  const CodecPtr codec = make_codec("lsh:int4");
  const at::Tensor zeros = at::zeros({kTile}), estimate = normal_values(kTile, 1);
  EXPECT_GT(LshTrip(*codec, zeros, zeros).reused, 0U);
  EXPECT_EQ(LshTrip(*codec, zeros, estimate).reused, 0U);
  EXPECT_EQ(LshTrip(*codec, estimate, zeros).reused, 0U);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 3e38F}) {
    at::Tensor values = estimate.clone();
    values[100] = bad;
    const LshTrip trip(*codec, values, estimate);
    EXPECT_EQ(trip.reused, 0U) << bad;
    EXPECT_FALSE(at::isfinite(trip.decoded).all().item<bool>()) << bad;
  }
}

TEST(Lsh, BytesDependNeitherOnPartsNorOnThreads) {
  const CodecPtr codec = make_codec("lsh:0.2:int4");
  const std::int64_t count = 9 * kTile + 1000;
  const at::Tensor estimate = normal_values(count, 1);
  at::Tensor difference = 0.1 * normal_values(count, 2);
  difference.slice(0, 2 * kTile, 5 * kTile) *= 30;
  const auto all = static_cast<std::uint64_t>(count);
  const auto encoded = [&](std::uint64_t step) {
    std::vector<std::uint32_t> payload(codec->payload_bytes(all) / 4), packed(payload.size());
    for (std::uint64_t first = 0; first < all; first += step) {
      EncodeInput input = {difference.const_data_ptr<float>()};
      input.estimate = estimate.const_data_ptr<float>();
      codec->encode(c10::kCPU, input.from(first),
                    {LshTrip::bytes_of(payload), all, {first, std::min(step, all - first)}, 9}, nullptr);
    }
    packed.resize(codec->pack(LshTrip::bytes_of(payload), all, LshTrip::bytes_of(packed)) / 4);
    return packed;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<std::uint32_t> expected = encoded(all);
  at::set_num_threads(3);
  EXPECT_EQ(encoded(all), expected);
  EXPECT_EQ(encoded(rules::kLshTile), expected);
  EXPECT_EQ(encoded(4 * rules::kLshTile), expected);
  at::set_num_threads(threads);
}

TEST(Lsh, DecodingAddsNothingWhereATileIsReused) {
  const CodecPtr codec = make_codec("lsh:dense");
  const at::Tensor estimate = normal_values(100, 1);
  LshTrip trip(*codec, estimate, estimate);
  at::Tensor out = normal_values(100, 4), before = out.clone();
  codec->decode(c10::kCPU, {LshTrip::bytes_of(trip.payload), 100, {0, 100}}, Store::add, out.mutable_data_ptr<float>(),
                nullptr);
  EXPECT_TRUE(at::equal(out, before));
}

/// The format is that of docs/formats.md.
TEST(Lsh, TheBytes) {
  const CodecPtr codec = make_codec("lsh:dense");
  const at::Tensor values = at::tensor({1.5F, -2.0F});
  LshTrip sent(*codec, values, {}), reused(*codec, values, values);
  EXPECT_EQ(sent.bytes, 12U);
  EXPECT_EQ(sent.packed, (std::vector<std::uint32_t>{1, 0x3FC00000, 0xC0000000}));
  EXPECT_EQ(reused.bytes, 4U);
  EXPECT_EQ(reused.packed[0], 0U);
}

TEST(Lsh, BytesThatNobodyPackedAreRefused) {
  const CodecPtr codec = make_codec("lsh:int4");
  const auto count = static_cast<std::uint64_t>(kTile + 64);
  LshTrip trip(*codec, normal_values(kTile + 64, 1), {});
  const auto* const begin = LshTrip::bytes_of(trip.packed);
  const std::vector<std::uint8_t> good(begin, begin + trip.bytes);
  std::vector<std::uint8_t> payload(codec->payload_bytes(count));
  EXPECT_EQ(codec->unpack(good, count, payload.data()), good.size());
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, std::size_t{4}, good.size() / 2, good.size() - 1}) {
    const std::vector<std::uint8_t> shorter(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_FALSE(codec->unpack(shorter, count, payload.data())) << cut;
  }
  for (const int word : {2, 255}) {
    std::vector<std::uint8_t> forged = good;
    forged[0] = static_cast<std::uint8_t>(word);
    EXPECT_FALSE(codec->unpack(forged, count, payload.data())) << word;
  }
  std::vector<std::uint8_t> longer = good;
  longer.resize(good.size() + 4);
  EXPECT_EQ(codec->unpack(longer, count, payload.data()), good.size());
}

TEST(Lsh, TextsThatMakeNone) {
  for (const char* text : {"lsh", "lsh:", "lsh:0.2", "lsh:0:int4", "lsh:0.6:int4", "lsh:-0.1:int4", "lsh:nan:int4",
                           "lsh:0.2:", "lsh:0.2:0.2:int4", "lsh:sign-vote", "lsh:lsh:int4", "lsh:powersgd:4",
                           "lsh:randomk:0.1:unbiased", "lsh:int4:7"}) {
    EXPECT_THROW(make_codec(text), Error) << text;
  }
  EXPECT_EQ(make_codec("lsh:0.100:int4:128")->text(), "lsh:int4:128");
  EXPECT_EQ(make_codec("lsh:0.20:topk:0.01:sign")->text(), "lsh:0.2:topk:0.01:sign");
}

}  // namespace

}  // namespace octavo
