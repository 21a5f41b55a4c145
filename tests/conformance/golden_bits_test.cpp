// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "octavo/rules/counter_random.h"
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

/// An FNV-1a hash of everything that a codec writes.
class Hash {
 public:
  template <class T>
  void add(const T* values, std::uint64_t count) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::uint64_t i = 0; i < count * sizeof(T); ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001B3U;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

/// Returns floats of many magnitudes, including zeros, that are the same with every standard library.
std::vector<float> drawn(std::uint64_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t word = rules::mix(i + seed * 0x9E3779B9U), other = rules::mix(word + 1);
    const float value =
        std::ldexp(static_cast<float>(static_cast<std::int32_t>(word)), -24 - static_cast<int>(other % 12));
    values[i] = other % 53 == 0 ? 0.0F : value;
  }
  return values;
}

struct Golden {
  BlockCodec codec;
  std::uint64_t block, count;
  bool everything;  // whether the input has everything that an input may have
  std::uint64_t hash;
  bool stochastic = false;
};

std::uint64_t hash_of(const CodecUnderTest& codec, const Golden& golden) {
  const std::uint64_t count = golden.count, block = golden.block;
  const auto gradient = drawn(count, 1), momentum = drawn(count, 2), preconditioner = drawn(count, 3),
             others = drawn(count, 4);
  std::vector<rules::Residual> residual;
  for (const float value : drawn(count, 5)) residual.push_back(rules::to_residual(value, 0));
  EncodeInput input{gradient.data()};
  input.rounding_key = 12345;
  input.stochastic = golden.stochastic;
  if (golden.everything) {
    input.residual = residual.data();
    input.momentum = momentum.data();
    input.preconditioner = preconditioner.data();
    input.others = others.data();
    input.gradient_weight = 0.1F;
    input.momentum_weight = 0.9F;
    input.sum_weight = 0.5F;
    input.first = 192;
  }
  Encoded to(codec.blocks(count, block), codec.bytes(count, block), count, 0);
  std::vector<float> decoded(count);
  tested().of(golden.codec).encode({}, input, count, block, to.payload(), to.next.data());
  tested().of(golden.codec).decode({}, to.payload(), count, block, Store::assign, decoded.data(), nullptr);
  Hash hash;
  hash.add(to.scales.data(), to.scales.count());
  hash.add(to.codes.data(), to.codes.count());
  hash.add(to.next.data(), count);
  hash.add(decoded.data(), count);
  return hash.value();
}

/// What codecs wrote when they were first released: payloads and residuals of other versions must stay readable.
constexpr Golden kGolden[] = {
    {BlockCodec::fp32, 4096, 300001, false, 0x4ED3D6C8E02CFE9D},
    {BlockCodec::fp32, 4096, 300001, true, 0x2BDBA8B013CAA981},
    {BlockCodec::bf16, 4096, 300001, false, 0xB88E859BB757FB22},
    {BlockCodec::bf16, 4096, 300001, true, 0x3E050474A651FF8D},
    {BlockCodec::sign, 8, 300001, false, 0x23BA8BCE4D04C554},
    {BlockCodec::sign, 8, 300001, true, 0x684C1E1E2682A36C},
    {BlockCodec::sign, 32, 300001, false, 0xFFEE1C27E61AF0C7},
    {BlockCodec::sign, 32, 300001, true, 0x6D8B74988AD036F8},
    {BlockCodec::sign, 64, 1000, false, 0x77D81A63FEFB357D},
    {BlockCodec::sign, 64, 1000, true, 0x48E05484BBF3A651},
    {BlockCodec::sign, 64, 300001, false, 0xB474FD793C7A50CA},
    {BlockCodec::sign, 64, 300001, true, 0xC3E95AE485E94E2D},
    {BlockCodec::sign, 256, 300001, false, 0x298BA89E27C20693},
    {BlockCodec::sign, 256, 300001, true, 0xD3BF2A746309257A},
    {BlockCodec::sign, 1000, 1000, false, 0xB432BCE3B640A5A2},
    {BlockCodec::sign, 1000, 1000, true, 0xA2E41C3BF363E607},
    {BlockCodec::sign, 1000, 300001, false, 0x9A35ECD7AF9537BC},
    {BlockCodec::sign, 1000, 300001, true, 0xC9F0E76FE9CAA75D},
    {BlockCodec::sign, 4096, 300001, false, 0xDF2EE0D5FD144218},
    {BlockCodec::sign, 4096, 300001, true, 0xDC33CA67CC942B57},
    {BlockCodec::sign, 262144, 300001, false, 0x9F6796B801E4B23C},
    {BlockCodec::sign, 262144, 300001, true, 0xDF2E869D4EC38477},
    {BlockCodec::sign_vote, 8, 300001, false, 0x9193D75B1A2984EC},
    {BlockCodec::sign_vote, 8, 300001, true, 0x4F6E19C596EB9553},
    {BlockCodec::sign_vote, 32, 300001, false, 0xCF51977DDBF71EE5},
    {BlockCodec::sign_vote, 32, 300001, true, 0x76E96147BC552512},
    {BlockCodec::sign_vote, 64, 1000, false, 0xAE1639AF70099DA2},
    {BlockCodec::sign_vote, 64, 1000, true, 0xC39065242A0D5977},
    {BlockCodec::sign_vote, 64, 300001, false, 0xE81BCA2EE411AD39},
    {BlockCodec::sign_vote, 64, 300001, true, 0x40983C32E8686B0A},
    {BlockCodec::sign_vote, 256, 300001, false, 0x77BDA7D6176010E9},
    {BlockCodec::sign_vote, 256, 300001, true, 0x289651A24C57D74A},
    {BlockCodec::sign_vote, 1000, 1000, false, 0x7B4D8C14F950D321},
    {BlockCodec::sign_vote, 1000, 1000, true, 0x13EE6BB11D7560F6},
    {BlockCodec::sign_vote, 1000, 300001, false, 0xC38322302E7AAB38},
    {BlockCodec::sign_vote, 1000, 300001, true, 0x113434E47E8B1451},
    {BlockCodec::sign_vote, 4096, 300001, false, 0xD44E3C30904FBDAD},
    {BlockCodec::sign_vote, 4096, 300001, true, 0xEAA6F349F3159A9A},
    {BlockCodec::sign_vote, 262144, 300001, false, 0xB734FCC2761F6431},
    {BlockCodec::sign_vote, 262144, 300001, true, 0x88FCFBC1F8912D5A},
    {BlockCodec::int4, 8, 300001, false, 0x1F8BFBA3550DD033},
    {BlockCodec::int4, 8, 300001, true, 0x40F307F8C5CAF768},
    {BlockCodec::int4, 32, 300001, false, 0x1E7DC6E94954D607},
    {BlockCodec::int4, 32, 300001, true, 0x9A8E21EBB90F5197},
    {BlockCodec::int4, 64, 1000, false, 0xB749C09A276141F2},
    {BlockCodec::int4, 64, 1000, true, 0xD628A6782F9E58B4},
    {BlockCodec::int4, 64, 300001, false, 0xE5D2F0737E61BC69},
    {BlockCodec::int4, 64, 300001, true, 0xDCB9302F9B06104B},
    {BlockCodec::int4, 256, 300001, false, 0xD6E2ECE4F908015F},
    {BlockCodec::int4, 256, 300001, true, 0x9A0A57A669CA23DB},
    {BlockCodec::int4, 1000, 1000, false, 0x7BB449C5EDB3C564},
    {BlockCodec::int4, 1000, 1000, true, 0x6C71D4719478F5C4},
    {BlockCodec::int4, 1000, 300001, false, 0xF82FEE1C4E7515F0},
    {BlockCodec::int4, 1000, 300001, true, 0xF69BB32C91499982},
    {BlockCodec::int4, 4096, 300001, false, 0x0DBBDC55C333FD1B},
    {BlockCodec::int4, 4096, 300001, true, 0x7B92E70D43A58782},
    {BlockCodec::int4, 262144, 300001, false, 0xD81319A74ED4D5FF},
    {BlockCodec::int4, 262144, 300001, true, 0x0A2EB61FD256D967},
    {BlockCodec::fp16, 4096, 30001, true, 0x3A1D7D145A9BC734},
    {BlockCodec::fp8, 8, 30001, true, 0xB7B782C03AC81467},
    {BlockCodec::fp8, 64, 30001, true, 0x1526431F7BF1CA25},
    {BlockCodec::fp8, 1000, 30001, true, 0x59D65B634248F5FD},
    {BlockCodec::fp8, 262144, 30001, true, 0x2CA542A29AF13687},
    {BlockCodec::fp8_e5m2, 8, 30001, true, 0x4BAC8A165D913A86},
    {BlockCodec::fp8_e5m2, 64, 30001, true, 0x420DEFA971203383},
    {BlockCodec::fp8_e5m2, 1000, 30001, true, 0xEC3CD2FBEDA222E8},
    {BlockCodec::fp8_e5m2, 262144, 30001, true, 0x7303696C36186380},
    {BlockCodec::e3m0, 8, 30001, true, 0x4E1D82FD3A0E3CE9},
    {BlockCodec::e3m0, 64, 30001, true, 0xEFF355FF0FD38BFC},
    {BlockCodec::e3m0, 1000, 30001, true, 0xCC7B68EB0976E6FB},
    {BlockCodec::e3m0, 262144, 30001, true, 0x3654CF32A408AE30},
    {BlockCodec::int8, 8, 30001, true, 0xA91D121D98273E9B},
    {BlockCodec::int8, 64, 30001, true, 0x1DC3C1637AEB9FA3},
    {BlockCodec::int8, 64, 30001, true, 0x198E90737FB59E19, true},
    {BlockCodec::int8, 1000, 30001, true, 0x332981B00CF0E179},
    {BlockCodec::int8, 262144, 30001, true, 0x3544028C8564AED4},
    {BlockCodec::int7, 8, 30001, true, 0x65790772D40BE249},
    {BlockCodec::int7, 64, 30001, true, 0x42DD0A24096A1E4C},
    {BlockCodec::int7, 64, 30001, true, 0xD6C6829F3F62589C, true},
    {BlockCodec::int7, 1000, 30001, true, 0xE643FAF3A8587D66},
    {BlockCodec::int7, 262144, 30001, true, 0xE45777FC80771EA9},
    {BlockCodec::int6, 8, 30001, true, 0x7A5870E1E73DA18E},
    {BlockCodec::int6, 64, 30001, true, 0xA152149D595B4D08},
    {BlockCodec::int6, 64, 30001, true, 0xDBB745B3A51EF48E, true},
    {BlockCodec::int6, 1000, 30001, true, 0xDFFD0E4B6FA3BD9A},
    {BlockCodec::int6, 262144, 30001, true, 0x40AF6477E8888E91},
    {BlockCodec::int5, 8, 30001, true, 0x3B6D34E0B5006330},
    {BlockCodec::int5, 64, 30001, true, 0x48D6823F65F139C0},
    {BlockCodec::int5, 64, 30001, true, 0x2DBD07DDD89D4955, true},
    {BlockCodec::int5, 1000, 30001, true, 0x28E709639AF3E048},
    {BlockCodec::int5, 262144, 30001, true, 0x0CE9E345C943418D},
    {BlockCodec::int3, 8, 30001, true, 0xBE2721AA37D9FEBF},
    {BlockCodec::int3, 64, 30001, true, 0x94953A2678EA98E0},
    {BlockCodec::int3, 64, 30001, true, 0x49F1D9114DE5AB36, true},
    {BlockCodec::int3, 1000, 30001, true, 0xFF809B4DD6984FA0},
    {BlockCodec::int3, 262144, 30001, true, 0x2C7EF7D907FB1602},
    {BlockCodec::int2, 8, 30001, true, 0x656D7A00CC9A39D7},
    {BlockCodec::int2, 64, 30001, true, 0xB7BE1D5822720432},
    {BlockCodec::int2, 64, 30001, true, 0x2BE206ED2F27407B, true},
    {BlockCodec::int2, 1000, 30001, true, 0x6E1583645C9EC8C3},
    {BlockCodec::int2, 262144, 30001, true, 0x3B4C7554AB7A6B15},
    {BlockCodec::sign2, 8, 30001, true, 0x8B47E474F79B8762},
    {BlockCodec::sign2, 64, 30001, true, 0x1C464BE667CFAFC8},
    {BlockCodec::sign2, 1000, 30001, true, 0x45F05B1F4A8BA07F},
    {BlockCodec::sign2, 262144, 30001, true, 0x6F6A03622FA8504A},
    {BlockCodec::ternary, 8, 30001, true, 0x9295AD001D09B3DD},
    {BlockCodec::ternary, 64, 30001, true, 0x8075A3FB63CEDB3F},
    {BlockCodec::ternary, 1000, 30001, true, 0xF381C3FCF79A7683},
    {BlockCodec::ternary, 262144, 30001, true, 0xC7D425BA538777CA},
};

TEST(GoldenBits, CodecsWriteWhatTheyAlwaysWrote) {
  if (tested().runtime) return;  // a device is compared with the reference, which is tested here
  for (const Golden& golden : kGolden) {
    const CodecUnderTest codec = all_codecs()[static_cast<std::size_t>(golden.codec)];
    EXPECT_EQ(hash_of(codec, golden), golden.hash)
        << codec.name << ", block " << golden.block << ", count " << golden.count << ", " << golden.everything;
  }
}

std::uint64_t hash_of_sketch(const rules::CountSketch& shape) {
  constexpr std::uint64_t kCount = 30001, kFirst = 200;
  const auto values = drawn(kCount, 1);
  EncodeInput input{values.data()};
  input.gradient_weight = 0.1F;
  input.first = kFirst;
  std::vector<float> sketch(shape.cells()), estimates(kCount);
  tested().insert_sketch({}, input, kCount, shape, {0, shape.blocks()}, sketch.data());
  tested().estimate_sketch({}, sketch.data(), shape, kFirst, kCount, estimates.data());
  Hash hash;
  hash.add(sketch.data(), sketch.size());
  hash.add(estimates.data(), kCount);
  return hash.value();
}

TEST(GoldenBits, CountSketchesHoldWhatTheyAlwaysHeld) {
  if (tested().runtime) return;
  EXPECT_EQ(hash_of_sketch({7, 1, 64}), 0xF9CA5B8FB19617DEU);
  EXPECT_EQ(hash_of_sketch({0x1234567890ABCDEF, 3, 1024}), 0xE0582B01E14AE49BU);
  EXPECT_EQ(hash_of_sketch({0x1234567890ABCDEF, 5, 19200}), 0x2676E99DD49CAFCAU);
}

}  // namespace

}  // namespace octavo::conformance
