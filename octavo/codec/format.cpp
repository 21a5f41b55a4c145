// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/format.h"

namespace octavo {

namespace {

template <class Rule>
constexpr CodecTraits traits_of(const char* name) {
  return {name,
          rules::code_bytes<Rule::kBits>,
          Rule::kHasScale,
          Rule::kLeavesError,
          Rule::kKeepsMagnitude,
          Rule::kDithers,
          Rule::kBlock};
}

#define OCTAVO_TRAITS(name, text, ...) traits_of<__VA_ARGS__>(text),
constexpr CodecTraits kTraits[] = {OCTAVO_BLOCK_CODECS(OCTAVO_TRAITS)};
#undef OCTAVO_TRAITS

#define OCTAVO_ITSELF(name, ...) BlockCodec::name,
constexpr BlockCodec kAll[] = {OCTAVO_BLOCK_CODECS(OCTAVO_ITSELF)};
#undef OCTAVO_ITSELF

}  // namespace

const CodecTraits& traits(BlockCodec codec) { return kTraits[static_cast<std::size_t>(codec)]; }

std::span<const BlockCodec> all_block_codecs() { return kAll; }

std::uint64_t Format::blocks(std::uint64_t count) const { return count / block + (count % block != 0); }

std::uint64_t Format::scale_bytes(std::uint64_t count) const {
  return traits(codec).has_scale ? sizeof(float) * blocks(count) : 0;
}

std::uint64_t Format::payload_bytes(std::uint64_t count) const {
  const auto code_bytes = traits(codec).code_bytes;
  const std::uint64_t bytes = scale_bytes(count) + count / block * code_bytes(block) + code_bytes(count % block);
  return (bytes + 3) / 4 * 4;
}

Payload Format::payload(std::uint8_t* bytes, std::uint64_t count) const {
  return {reinterpret_cast<float*>(bytes), bytes + scale_bytes(count)};
}

Payload Format::from(Payload payload, std::uint64_t first) const {
  const std::uint64_t skipped = first / block;
  return {payload.scales + skipped, payload.codes + skipped * traits(codec).code_bytes(block)};
}

Format default_format(BlockCodec codec) { return {codec, traits(codec).default_block}; }

}  // namespace octavo
