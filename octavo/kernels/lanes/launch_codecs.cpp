// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/backend.h"
#include "octavo/kernels/lanes/launch.h"
#include "octavo/kernels/lanes/table.h"
#include "octavo/rules/count_sketch.h"
#include "octavo/rules/lossless.h"
#include "octavo/rules/low_rank.h"
#include "octavo/rules/random_k.h"
#include "octavo/rules/threshold.h"
#include "octavo/rules/top_k.h"

/// Enqueues the kernels of the codecs, except those in blocks (launch_blocks.cpp).
namespace octavo::lanes {

void pack_sign_bits(Queue queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits) {
  const KernelName name{"sign_bits", "pack_sign_bits_" + std::to_string(value_bytes)};
  launch_spans(queue, name, count, values, count, bits);
}

void unpack_sign_bits(Queue queue, const std::uint8_t* bits, std::uint64_t count, float* values) {
  launch_spans(queue, {"sign_bits", "unpack_sign_bits"}, count, bits, count, values);
}

// Messages are in the memory of the host, so its own processor packs them.

void measure_words(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks) {
  backend("cpu").measure_words(words, count, blocks);
}

void pack_words(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks, std::uint8_t* packed) {
  backend("cpu").pack_words(words, count, blocks, packed);
}

bool unpack_words(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                  std::uint16_t* words) {
  return backend("cpu").unpack_words(packed, count, blocks, words);
}

void count_large(Queue queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts) {
  const std::uint64_t chunks = divide_up(count, rules::kCountChunk);
  launch_groups(queue, {"threshold", "count_large"}, chunks, values, count, least, counts);
}

void select_top(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, float* scratch,
                float* values, std::uint32_t* indices, rules::Residual* next) {
  launch_groups(queue, {"top_k", "select_top"}, shape.tiles(count), in, count, shape, scratch, values, indices, next);
}

void settle_top(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, const float* values,
                const float* sent, const std::uint32_t* indices, rules::Residual* next) {
  launch_groups(queue, {"top_k", "settle_top"}, shape.tiles(count), in, count, shape, values, sent, indices, next);
}

void gather_top(Queue queue, const EncodeInput& in, const std::uint32_t* indices, std::uint64_t count,
                const rules::TopK& shape, float* values, rules::Residual* next) {
  if (next) launch_spans(queue, {"top_k", "leave_all"}, count, in, count, next);
  launch_groups(queue, {"top_k", "gather_top"}, shape.tiles(count), in, indices, count, shape, values, next);
}

void scatter_top(Queue queue, const float* sent, const std::uint32_t* indices, std::uint64_t count,
                 const rules::TopK& shape, Store how, float* out, std::uint32_t* nonfinite) {
  launch_groups(queue, {"top_k", "scatter_top"}, shape.tiles(count), sent, indices, count, shape, how, out, nonfinite);
}

void select_random(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape,
                   float* values) {
  launch_spans(queue, {"random_k", "select_random"}, shape.kept_in(count), in, count, shape, values);
  launch_spans(queue, {"random_k", "mark_nonfinite"}, count, in, count, shape.stride, values);
}

void settle_random(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape,
                   const float* sent, rules::Residual* next) {
  launch_spans(queue, {"random_k", "settle_random"}, count, in, count, shape, sent, next);
}

void scatter_random(Queue queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store how,
                    float* out, std::uint32_t* nonfinite) {
  launch_spans(queue, {"random_k", "scatter_random"}, count, sent, count, shape, how, out, nonfinite);
}

void insert_sketch(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::CountSketch& shape,
                   rules::SketchBlocks part, float* sketch) {
  // Each group of items looks at the places of all elements, so the work is linear only because the number of groups is
  // fixed.
  constexpr std::uint64_t kGroups = 256;
  const std::uint64_t blocks_of_group = divide_up(part.count, kGroups);
  const std::uint64_t groups = blocks_of_group == 0 ? 0 : divide_up(part.count, blocks_of_group);
  launch_groups(queue, {"count_sketch", "insert_sketch"}, groups, in, count, shape, part, blocks_of_group, sketch);
}

void estimate_sketch(Queue queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                     std::uint64_t count, float* estimates) {
  // The spans begin where a group of elements does.
  const std::uint64_t begin = first % rules::kSketchGroup, elements = count == 0 ? 0 : begin + count;
  launch_spans(queue, {"count_sketch", "estimate_" + std::to_string(shape.rows)}, elements, sketch, shape, first, count,
               estimates);
}

void find_left_factor(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* right, float* left) {
  launch_groups(queue, {"low_rank", "find_left_factor"}, count * shape.rank, in, shape, first, right, left);
}

void find_right_factor(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                       std::uint64_t count, const float* left, float* right) {
  const std::uint64_t groups = divide_up(count, widths_of(queue).lanes);
  launch_groups(queue, {"low_rank", "find_right_factor"}, groups, in, shape, first, count, left, right);
}

void multiply_factors(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* left, const float* right, float* out, rules::Residual* next,
                      std::uint32_t* nonfinite) {
  launch_spans(queue, {"low_rank", "multiply_factors"}, count * shape.columns, in, shape, first, count, left, right,
               out, next, nonfinite);
}

}  // namespace octavo::lanes
