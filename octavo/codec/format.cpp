// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/format.h"

#include <array>

#include "octavo/rules/int4.h"
#include "octavo/rules/sign_bits.h"

namespace octavo {

namespace {

/// A block that is read twice should stay in L2: 2^18 floats are 1 MiB.
constexpr std::uint64_t kL2Block = 1U << 18;
/// Codecs without scales have no blocks of meaning; this is how their work is cut for threads.
constexpr std::uint64_t kNoScaleBlock = 4096;
/// 4.5 bits per value. With 256, a block of an embedding held several rows, the scale of a frequent token was too
/// coarse for a rare one, and training could stop at a plateau (docs/quality.md).
constexpr std::uint64_t kInt4Block = 64;

// In the order of the enumeration.
constexpr std::array kTraits = {
    CodecTraits{Codec::fp32, "fp32", &KernelTable::fp32, [](std::uint64_t n) { return 4 * n; }, false, kNoScaleBlock},
    CodecTraits{Codec::bf16, "bf16", &KernelTable::bf16, [](std::uint64_t n) { return 2 * n; }, false, kNoScaleBlock},
    CodecTraits{Codec::scaled_sign, "sign", &KernelTable::scaled_sign,
                [](std::uint64_t n) { return rules::packed_sign_bytes(n); }, true, 256},
    CodecTraits{Codec::majority_vote, "majority_vote", &KernelTable::majority_vote,
                [](std::uint64_t n) { return 2 * rules::packed_sign_bytes(n); }, true, kL2Block},
    CodecTraits{Codec::int4, "int4", &KernelTable::int4, [](std::uint64_t n) { return rules::packed_int4_bytes(n); },
                true, kInt4Block},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (static_cast<std::size_t>(kTraits[i].codec) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const CodecTraits& traits(Codec codec) { return kTraits[static_cast<std::size_t>(codec)]; }

std::uint64_t Format::blocks(std::uint64_t count) const { return count / block + (count % block != 0); }

std::uint64_t Format::scale_bytes(std::uint64_t count) const {
  return traits(codec).scaled ? sizeof(float) * blocks(count) : 0;
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

Format default_format(Codec codec) { return {codec, traits(codec).default_block}; }

}  // namespace octavo
