// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/lossless.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/backend.h"
#include "octavo/rules/lossless.h"

namespace octavo {

namespace {

using rules::kWordBlock;
using rules::WordBlock;

CodecTraits packing(CodecTraits traits) {
  traits.packs = true;
  return traits;
}

/// The blocks of a payload, and where the bytes of each begin.
struct Blocks {
  std::uint64_t count = 0;  // in words
  std::vector<WordBlock> all;
  std::vector<std::uint64_t> starts;  // the last one is the end of the last block

  /// Returns the calling thread's blocks, which keep their memory; what they held before is lost.
  static Blocks& of(std::uint64_t words) {
    static thread_local Blocks blocks;
    blocks.count = words;
    blocks.all.resize(rules::word_blocks(words));
    blocks.starts.resize(blocks.all.size() + 1);
    return blocks;
  }

  std::uint64_t bytes() const { return all.size() * sizeof(WordBlock); }
  std::uint64_t size(std::uint64_t number) const { return std::min(kWordBlock, count - number * kWordBlock); }
  void place() {
    starts[0] = bytes();
    for (std::uint64_t b = 0; b < all.size(); ++b) starts[b + 1] = starts[b] + all[b].bytes(size(b));
  }
  bool are_possible() const {
    for (std::uint64_t b = 0; b < all.size(); ++b) {
      if (!all[b].is_possible(size(b))) return false;
    }
    return true;
  }

  /// Calls body(number of the first block, its first word, number of words) for parts of the blocks, on all threads.
  template <class Body>
  void for_each_part(Body body) const {
    constexpr auto kGrain = static_cast<std::int64_t>(kGrainValues / kWordBlock);
    for_parts(c10::kCPU, static_cast<std::int64_t>(all.size()), kGrain, [&](std::int64_t from, std::int64_t to) {
      const std::uint64_t first = static_cast<std::uint64_t>(from) * kWordBlock;
      body(static_cast<std::uint64_t>(from), first,
           std::min(count, static_cast<std::uint64_t>(to) * kWordBlock) - first);
    });
  }
};

}  // namespace

Lossless::Lossless(BlockCodec words)
    : Codec(plan_name(words) + ":" + std::string(kLossless), packing(block_coding(words).traits())), words_(words) {}

std::uint64_t Lossless::payload_bytes(std::uint64_t count) const {
  const std::uint64_t planes = count + 8 * rules::packed_sign_bytes(count);  // at worst 8 planes, each in whole bytes
  return std::max(words_.payload_bytes(count), whole_words(planes)) + rules::word_blocks(count) * sizeof(WordBlock);
}

std::uint64_t Lossless::pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const {
  if (count == 0) return 0;
  const auto* const words = reinterpret_cast<const std::uint16_t*>(payload);
  const KernelTable& kernels = host_backend();
  Blocks& blocks = Blocks::of(count);
  blocks.for_each_part([&](std::uint64_t block, std::uint64_t first, std::uint64_t size) {
    kernels.measure_words(words + first, size, &blocks.all[block]);
  });
  blocks.place();
  std::memcpy(packed, blocks.all.data(), blocks.bytes());
  blocks.for_each_part([&](std::uint64_t block, std::uint64_t first, std::uint64_t size) {
    kernels.pack_words(words + first, size, &blocks.all[block], packed + blocks.starts[block]);
  });
  return blocks.starts.back();
}

std::optional<std::uint64_t> Lossless::unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                              std::uint8_t* payload) const {
  if (count == 0) return 0;
  auto* const words = reinterpret_cast<std::uint16_t*>(payload);
  const KernelTable& kernels = host_backend();
  Blocks& blocks = Blocks::of(count);
  if (packed.size() < blocks.bytes()) return std::nullopt;
  std::memcpy(blocks.all.data(), packed.data(), blocks.bytes());
  if (!blocks.are_possible()) return std::nullopt;
  blocks.place();
  if (packed.size() < blocks.starts.back()) return std::nullopt;
  std::atomic<bool> fits = true;
  blocks.for_each_part([&](std::uint64_t block, std::uint64_t first, std::uint64_t size) {
    const bool part_fits =
        kernels.unpack_words(packed.data() + blocks.starts[block], size, &blocks.all[block], words + first);
    if (!part_fits) fits = false;
  });
  if (!fits) return std::nullopt;
  return blocks.starts.back();
}

CodecPtr make_lossless(BlockCodec codec, const CodecText& text) {
  if (codec != BlockCodec::bf16 && codec != BlockCodec::fp16) {
    text.refuse("only bf16 and fp16 are packed without loss, as in bf16:lossless");
  }
  if (text.options.size() > 1) text.refuse("after lossless nothing follows");
  return std::make_shared<Lossless>(codec);
}

}  // namespace octavo
