// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/span.h"

namespace octavo::sycl_backend {

namespace {

using sycl_span::Blocks, sycl_span::divide_up;

/// A block is then so wide, and so few of them are there, that whole blocks would leave cores of the device idle.
bool go_by_chunks(Stream stream, const Blocks& blocks) {
  return blocks.chunks_of_block() > 1 && blocks.blocks() < groups_at_once(stream);
}

std::uint64_t spans(const Blocks& blocks) { return divide_up(blocks.blocks(), blocks.blocks_of_group()); }

}  // namespace

void encode_blocks(const std::string& name, Stream stream, const EncodeInput& in, std::uint64_t count,
                   std::uint64_t block, Payload payload, rules::Residual* next) {
  if (count == 0) return;
  const Blocks blocks{count, block, payload};
  if (!go_by_chunks(stream, blocks))
    return launch_groups(stream, name + "_encode_blocks", spans(blocks), in, blocks, next);
  const std::uint64_t chunks = blocks.blocks() * blocks.chunks_of_block();
  launch_groups(stream, name + "_summarize_chunks", chunks, in, blocks);
  launch_groups(stream, name + "_add_summaries", blocks.blocks(), in, blocks);
  launch_groups(stream, name + "_encode_chunks", chunks, in, blocks, next);
  launch_elements(stream, name + "_write_scales", blocks.blocks(), blocks);
}

void decode_blocks(const std::string& name, Stream stream, Payload payload, std::uint64_t count, std::uint64_t block,
                   Store how, float* out) {
  if (count == 0) return;
  const Blocks blocks{count, block, payload};
  if (!go_by_chunks(stream, blocks))
    return launch_groups(stream, name + "_decode_blocks", spans(blocks), blocks, how, out);
  launch_groups(stream, name + "_decode_chunks", blocks.blocks() * blocks.chunks_of_block(), blocks, how, out);
}

}  // namespace octavo::sycl_backend
