// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/span.h"

namespace octavo::sycl_backend {

namespace {

using sycl_span::Blocks, sycl_span::divide_up;

unsigned what_it_has(const EncodeInput& in, const rules::Residual* next) {
  using namespace sycl_span;
  return (in.residual ? kHasResidual : 0U) | (in.momentum ? kHasMomentum : 0U) | (in.others ? kHasOthers : 0U) |
         (next ? kWantsNext : 0U);
}

std::uint64_t spans(const Blocks& blocks) { return divide_up(blocks.blocks, blocks.blocks_of_group); }

}  // namespace

void encode_blocks(const char* codec, Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block,
                   Payload payload, rules::Residual* next) {
  if (count == 0) return;
  const Blocks blocks = Blocks::of(count, block, payload);
  const std::string options = "-DOCTAVO_INPUT_HAS=" + std::to_string(what_it_has(in, next));
  const auto kernel = [&](const char* part) { return KernelName{codec, std::string(codec) + part, options}; };
  if (blocks.chunks_of_block == 1) {
    return launch_groups(queue, kernel("_encode_blocks"), spans(blocks), in, blocks, next);
  }
  const std::uint64_t chunks = blocks.blocks * blocks.chunks_of_block;
  launch_groups(queue, kernel("_summarize_chunks"), chunks, in, blocks);
  launch_groups(queue, kernel("_add_summaries"), blocks.blocks, in, blocks);
  launch_groups(queue, kernel("_encode_chunks"), chunks, in, blocks, next);
  launch_elements(queue, kernel("_write_scales"), blocks.blocks, blocks);
}

void decode_blocks(const char* codec, Queue queue, Payload payload, std::uint64_t count, std::uint64_t block,
                   Store how, float* out) {
  if (count == 0) return;
  const Blocks blocks = Blocks::of(count, block, payload);
  const auto kernel = [&](const char* part) { return KernelName{codec, std::string(codec) + part}; };
  if (blocks.chunks_of_block == 1) {
    return launch_groups(queue, kernel("_decode_blocks"), spans(blocks), blocks, how, out);
  }
  launch_groups(queue, kernel("_decode_chunks"), blocks.blocks * blocks.chunks_of_block, blocks, how, out);
}

}  // namespace octavo::sycl_backend
