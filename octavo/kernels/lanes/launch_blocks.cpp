// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/lanes/chunks.h"
#include "octavo/kernels/lanes/launch.h"
#include "octavo/kernels/lanes/table.h"
#include "octavo/rules/block_codecs.h"

/// Enqueues the kernels of the codecs in blocks.
namespace octavo::lanes {

namespace {

/// Returns the flags of Input for which an encoder's kernels are compiled.
template <BlockCodec codec>
unsigned input_flags(const EncodeInput& in, const rules::Residual* next) {
  return (in.residual ? kHasResidual : 0U) | (in.momentum ? kHasMomentum : 0U) | (in.others ? kHasOthers : 0U) |
         (next ? kWantsNext : 0U) | (RuleOf<codec>::type::kDithers && in.stochastic ? kIsStochastic : 0U);
}

#define OCTAVO_NAME(name, ...) #name,
constexpr const char* kNames[] = {OCTAVO_BLOCK_CODECS(OCTAVO_NAME)};
#undef OCTAVO_NAME

template <BlockCodec codec>
KernelName kernel_of(const char* function, std::string options) {
  constexpr bool kHasScale = RuleOf<codec>::type::kHasScale;
  options = std::string("-DOCTAVO_CODEC=") + kNames[static_cast<std::size_t>(codec)] +
            " -DOCTAVO_HAS_SCALE=" + (kHasScale ? "1" : "0") + options;
  return {"block_codec", function, options};
}

std::uint64_t groups_of(const Blocks& blocks) { return divide_up(blocks.blocks, blocks.blocks_of_group); }

/// Returns the blocks of a codec. Without scales, blocks only divide the work.
template <BlockCodec codec>
Blocks blocks_of(Queue queue, std::uint64_t count, std::uint64_t block, Payload payload) {
  return Blocks::of(count, RuleOf<codec>::type::kHasScale ? block : kChunk, payload, widths_of(queue).span);
}

}  // namespace

template <BlockCodec codec>
void encode_blocks(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  if (count == 0) return;
  const Blocks blocks = blocks_of<codec>(queue, count, block, payload);
  const std::string options = " -DOCTAVO_INPUT_HAS=" + std::to_string(input_flags<codec>(in, next));
  const auto kernel = [&](const char* function) { return kernel_of<codec>(function, options); };
  if (blocks.chunks_of_block == 1) {
    return launch_groups(queue, kernel("encode_blocks"), groups_of(blocks), in, blocks, next);
  }
  const std::uint64_t chunks = blocks.blocks * blocks.chunks_of_block;
  launch_groups(queue, kernel("summarize_chunks"), chunks, in, blocks);
  launch_groups(queue, kernel("add_summaries"), blocks.blocks, in, blocks);
  launch_groups(queue, kernel("encode_chunks"), chunks, in, blocks, next);
  launch_elements(queue, kernel("write_scales"), blocks.blocks, blocks);
}

template <BlockCodec codec>
void decode_blocks(Queue queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out,
                   std::uint32_t* nonfinite) {
  if (count == 0) return;
  const Blocks blocks = blocks_of<codec>(queue, count, block, payload);
  if (blocks.chunks_of_block == 1) {
    return launch_groups(queue, kernel_of<codec>("decode_blocks", ""), groups_of(blocks), blocks, how, out, nonfinite);
  }
  const std::uint64_t chunks = blocks.blocks * blocks.chunks_of_block;
  launch_groups(queue, kernel_of<codec>("decode_chunks", ""), chunks, blocks, how, out, nonfinite);
}

#define OCTAVO_INSTANTIATE(name, ...)                    \
  template EncodeKernel encode_blocks<BlockCodec::name>; \
  template DecodeKernel decode_blocks<BlockCodec::name>;
OCTAVO_BLOCK_CODECS(OCTAVO_INSTANTIATE)

}  // namespace octavo::lanes
