// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/block_coding.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "octavo/codec/lossless.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

constexpr std::uint64_t kSmallestBlock = 8, kLargestBlock = 1U << 24;
constexpr std::string_view kStochastic = "stochastic";

constexpr const char* kOnlyTheseDither = "only int2 to int8 round stochastically";

/// What a rule says about its codec.
struct Facts {
  const char* name;
  std::uint64_t (*code_bytes)(std::uint64_t count);  // of one block
  bool has_scale;                                    // one per block
  bool leaves_error, keeps_magnitude, dithers;
  std::uint64_t default_block;  // elements
};

template <class Rule>
constexpr Facts facts_of(const char* name) {
  return {name,
          rules::code_bytes<Rule::kBits>,
          Rule::kHasScale,
          Rule::kLeavesError,
          Rule::kKeepsMagnitude,
          Rule::kDithers,
          Rule::kBlock};
}

#define OCTAVO_FACTS(name, text, ...) facts_of<__VA_ARGS__>(text),
constexpr Facts kFacts[] = {OCTAVO_BLOCK_CODECS(OCTAVO_FACTS)};
#undef OCTAVO_FACTS

#define OCTAVO_ITSELF(name, ...) BlockCodec::name,
constexpr BlockCodec kAll[] = {OCTAVO_BLOCK_CODECS(OCTAVO_ITSELF)};
#undef OCTAVO_ITSELF

const Facts& facts(BlockCodec codec) { return kFacts[static_cast<std::size_t>(codec)]; }

/// Whether a plan may set the block's size. It matters only where the blocks' scales say something.
bool has_settable_block(BlockCodec codec) { return facts(codec).has_scale && facts(codec).keeps_magnitude; }

std::uint64_t block_or_default(BlockCodec codec, std::uint64_t block) {
  return block == 0 ? facts(codec).default_block : block;
}

std::string text_of(BlockCodec codec, std::uint64_t block, bool stochastic) {
  std::string text = plan_name(codec);
  if (has_settable_block(codec) && block != facts(codec).default_block) text += ":" + std::to_string(block);
  return stochastic ? text + ":" + std::string(kStochastic) : text;
}

}  // namespace

std::span<const BlockCodec> all_block_codecs() { return kAll; }

std::string plan_name(BlockCodec codec) { return codec == BlockCodec::fp32 ? "dense" : facts(codec).name; }

BlockCoding::BlockCoding(BlockCodec codec, std::uint64_t block, bool stochastic)
    : Codec(text_of(codec, block_or_default(codec, block), stochastic),
            {.granule = block_or_default(codec, block),
             .leaves_error = facts(codec).leaves_error,
             .keeps_magnitude = facts(codec).keeps_magnitude,
             .rounds_at_random = stochastic}),
      codec_(codec),
      block_(block_or_default(codec, block)),
      stochastic_(stochastic) {
  if (block_ % 8 != 0 && has_settable_block(codec)) {
    fail(ErrorCode::invalid_argument, "codec.block_coding", "expected a block of a multiple of 8 values, got ", block_);
  }
  if (stochastic && !facts(codec).dithers) {
    fail(ErrorCode::invalid_argument, "codec.block_coding", kOnlyTheseDither, ", and ", plan_name(codec), " does not");
  }
}

std::uint64_t BlockCoding::scale_bytes(std::uint64_t count) const {
  return facts(codec_).has_scale ? sizeof(float) * divide_up(count, block_) : 0;
}

std::uint64_t BlockCoding::payload_bytes(std::uint64_t count) const {
  const auto code_bytes = facts(codec_).code_bytes;
  const std::uint64_t bytes = scale_bytes(count) + count / block_ * code_bytes(block_) + code_bytes(count % block_);
  return whole_words(bytes);
}

Payload BlockCoding::payload(const PayloadPart& part) const {
  const std::uint64_t skipped = part.part.first / block_;
  return {reinterpret_cast<float*>(part.payload) + skipped,
          part.payload + scale_bytes(part.count) + skipped * facts(codec_).code_bytes(block_)};
}

void BlockCoding::encode(c10::Device device, const EncodeInput& wanted, const PayloadPart& to,
                         rules::Residual* next_residual) const {
  const LaunchScope scope(device);
  EncodeInput input = wanted;
  input.stochastic = stochastic_;
  EncodeKernel* const kernel = scope.kernels().of(codec_).encode;
  for_each_part(device, block_, to, [&](const PayloadPart& part, std::uint64_t first) {
    kernel(scope.queue(), input.from(first), part.part.count, block_, payload(part),
           next_residual ? next_residual + first : nullptr);
  });
}

void BlockCoding::decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                         std::uint32_t* nonfinite) const {
  const LaunchScope scope(device);
  DecodeKernel* const kernel = scope.kernels().of(codec_).decode;
  for_each_part(device, block_, from, [&](const PayloadPart& part, std::uint64_t first) {
    kernel(scope.queue(), payload(part), part.part.count, block_, store, out + first, nonfinite);
  });
}

const Codec& block_coding(BlockCodec codec) {
  static const auto* const all = [] {
    auto* const codings = new std::vector<std::unique_ptr<BlockCoding>>;
    for (const BlockCodec one : kAll) codings->push_back(std::make_unique<BlockCoding>(one));
    return codings;
  }();
  return *(*all)[static_cast<std::size_t>(codec)];
}

const Codec& exact_coding(at::ScalarType dtype) {
  return block_coding(dtype == at::kBFloat16 ? BlockCodec::bf16 : BlockCodec::fp32);
}

BlockCodec values_codec(const CodecText& text, std::string_view name) {
  const auto found =
      std::find_if(std::begin(kAll), std::end(kAll), [&](BlockCodec codec) { return plan_name(codec) == name; });
  if (found == std::end(kAll) || !facts(*found).keeps_magnitude) text.refuse("there is no such codec for the values");
  return *found;
}

CodecPtr make_block_coding(BlockCodec codec, const CodecText& text) {
  if (!text.options.empty() && text.options[0] == kLossless) return make_lossless(codec, text);
  std::uint64_t block = 0;
  bool stochastic = false;
  for (const std::string_view& option : text.options) {
    if (option == kStochastic) {
      if (stochastic) text.refuse("it says stochastic twice");
      if (!facts(codec).dithers) text.refuse(kOnlyTheseDither);
      stochastic = true;
      continue;
    }
    if (!has_settable_block(codec)) text.refuse("this codec has no blocks");
    if (&option != text.options.data()) text.refuse("its block comes first, and once");
    constexpr auto kExpected = "a block is a multiple of 8 from 8 to 16777216";
    block = text.whole_number(option, kSmallestBlock, kLargestBlock, kExpected);
    if (block % 8 != 0) text.refuse(kExpected);
  }
  return std::make_shared<BlockCoding>(codec, block, stochastic);
}

}  // namespace octavo
