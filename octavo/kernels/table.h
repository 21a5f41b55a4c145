// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/kernels/managed.h"
#include "octavo/kernels/operands.h"
#include "octavo/kernels/runtime.h"
#include "octavo/kernels/step_operands.h"
#include "octavo/rules/adamw.h"
#include "octavo/rules/block_codecs.h"
#include "octavo/rules/count_sketch.h"
#include "octavo/rules/lamb.h"
#include "octavo/rules/lion.h"
#include "octavo/rules/lossless.h"
#include "octavo/rules/low_rank.h"
#include "octavo/rules/outer_step.h"
#include "octavo/rules/random_k.h"
#include "octavo/rules/top_k.h"
#include "octavo/rules/zero_one_adam.h"

/// The kernel table: what a back end provides. Every entry is a plain function over raw memory of the back end's
/// device.
///
/// Common contract: buffers do not overlap unless said; any alignment; any count, 0 included; no allocation, no locks,
/// no exceptions but Error at the first use of a device whose kernels do not compile. A kernel is enqueued on
/// the Queue that it is given, of whose device its memory is, and not waited for; device/dispatch.h makes both. On the
/// CPU the Queue is the calling thread (`{}`), and calls on disjoint ranges may run at once.
namespace octavo {

/// Encodes `count` values in blocks of `block` elements (the last may be shorter); writes value - decoded, rounded by
/// rules/residual.h, to `next_residual` (null: not wanted; never the same memory as input.residual). A block that is
/// not rules::is_sendable() gets a NaN scale and a next residual of 0.
using EncodeKernel = void(Queue, const EncodeInput& input, std::uint64_t count, std::uint64_t block, Payload payload,
                          rules::Residual* next_residual);
/// Decodes to `out`, or adds to it. Sets *nonfinite (null: not wanted) to 1 where a decoded value is a NaN or an
/// infinity, or another code of its block would be, and leaves it alone otherwise; several calls may share one.
using DecodeKernel = void(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store store, float* out,
                          std::uint32_t* nonfinite);

struct CodecKernels {
  EncodeKernel* encode;
  DecodeKernel* decode;
};

/// Floats that select_top works in.
inline std::uint64_t top_k_scratch(std::uint64_t count, const rules::TopK& shape) {
  const std::uint64_t tile = shape.tile < count ? shape.tile : count;
  return count + tile / 2 + 256;
}

struct KernelTable {
  const char* name;                        // "reference", "avx512", "sycl", ...
  const DeviceRuntime* runtime = nullptr;  // null: ordinary memory and no streams
  const ManagedMemory* managed = nullptr;  // null: the back end has none

  // sign_bits: value_bytes is the width of an element, 1, 2, 4 or 8
  void (*pack_sign_bits)(Queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits);
  void (*unpack_sign_bits)(Queue, const std::uint8_t* bits, std::uint64_t count, float* values);

  // block_codec: in the order of BlockCodec
  CodecKernels block_codecs[kBlockCodecs];
  const CodecKernels& of(BlockCodec codec) const { return block_codecs[static_cast<std::size_t>(codec)]; }

  // lossless (rules/lossless.h): the codes for each block of some words; their packed bytes, one block's after another;
  // the words again, and whether there were as many escapes as the blocks say. Of the host's memory, by the calling
  // thread, in every back end: messages lie there.
  void (*measure_words)(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks);
  void (*pack_words)(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks,
                     std::uint8_t* packed);
  bool (*unpack_words)(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                       std::uint16_t* words);

  // top_k (rules/top_k.h): the largest of every tile to `values`, one tile's after another, their indices to
  // rules::index_words() words at a multiple of 4 bytes; to next_residual (null: not wanted) all values as what is left
  // over, non-finite ones as 0. `scratch`: top_k_scratch() floats of the device.
  void (*select_top)(Queue, const EncodeInput& input, std::uint64_t count, const rules::TopK& shape, float* scratch,
                     float* values, std::uint32_t* indices, rules::Residual* next_residual);
  // what is left over of the selected, of which `sent` was sent: corrects next_residual
  void (*settle_top)(Queue, const EncodeInput& input, std::uint64_t count, const rules::TopK& shape,
                     const float* values, const float* sent, const std::uint32_t* indices,
                     rules::Residual* next_residual);
  // the input's values at these indices to `values`; to next_residual (null: not wanted) all others as what is left
  // over, of these and of non-finite ones 0
  void (*gather_top)(Queue, const EncodeInput& input, const std::uint32_t* indices, std::uint64_t count,
                     const rules::TopK& shape, float* values, rules::Residual* next_residual);
  // the selected in their places, 0 elsewhere; `store` and `nonfinite` as in DecodeKernel
  void (*scatter_top)(Queue, const float* sent, const std::uint32_t* indices, std::uint64_t count,
                      const rules::TopK& shape, Store store, float* out, std::uint32_t* nonfinite);

  // threshold (rules/threshold.h): how many of each rules::kCountChunk values, or fewer at the end, have at least these
  // magnitude_bits
  void (*count_large)(Queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts);

  // random_k (rules/random_k.h): what is kept to `values`; what is left over of all where `sent` was sent of these, of
  // non-finite values 0; what was sent in its places, 0 elsewhere, `store` and `nonfinite` as in DecodeKernel
  void (*select_random)(Queue, const EncodeInput& input, std::uint64_t count, const rules::RandomK& shape,
                        float* values);
  void (*settle_random)(Queue, const EncodeInput& input, std::uint64_t count, const rules::RandomK& shape,
                        const float* sent, rules::Residual* next_residual);
  void (*scatter_random)(Queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store store,
                         float* out, std::uint32_t* nonfinite);

  // count_sketch (rules/count_sketch.h): adds values to the cells of a part of the blocks of a sketch, a float
  // [rows, columns], and touches no others; calls for disjoint parts may run at once. Elements have the numbers from
  // input.first on.
  void (*insert_sketch)(Queue, const EncodeInput& input, std::uint64_t count, const rules::CountSketch& shape,
                        rules::SketchBlocks part, float* sketch);
  // the estimates of the elements from number `first` on
  void (*estimate_sketch)(Queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                          std::uint64_t count, float* estimates);

  // low_rank (rules/low_rank.h), of the whole matrix that the input is: for `count` rows from `first` on the left
  // factor that belongs to a right one; for columns the right factor; for rows the product, to `out`, which may lie
  // where the gradient is, and what it leaves over (null: not wanted), `nonfinite` as in DecodeKernel
  void (*find_left_factor)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                           std::uint64_t count, const float* right, float* left);
  void (*find_right_factor)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                            std::uint64_t count, const float* left, float* right);
  void (*multiply_factors)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                           std::uint64_t count, const float* left, const float* right, float* out,
                           rules::Residual* next_residual, std::uint32_t* nonfinite);

  // gradient_power: rules::chunk_power of the rules::kPowerChunk elements, or fewer at the end, that begin at every
  // multiple of `stride` below `count`
  void (*chunk_powers)(Queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers);

  // residual: residuals times a decay, rounded by the random bits that elements from number `first` on draw of the key
  void (*decay_residual)(Queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                         std::uint64_t count, Store store, rules::Residual* decayed);

  // dgc (rules/dgc.h): the velocities of gradient_weight*gradient, before which `velocity` was (null: zeros), to next
  // (may be the same memory); those of what was sent begin anew
  void (*correct_momentum)(Queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                           std::uint64_t count, float* next);
  void (*mask_momentum)(Queue, const float* sent, std::uint64_t count, float* velocity);

  // ef21 (rules/ef21.h): the differences of the input's values to their estimates (null: zeros)
  void (*subtract_estimate)(Queue, const EncodeInput& input, const float* estimate, std::uint64_t count,
                            float* difference);
  // the values that were sent as differences to `out` and the next estimates to `next`; null: not wanted, the estimates
  // zeros. `store` and `nonfinite` as in DecodeKernel
  void (*add_to_estimate)(Queue, const float* sent, const float* estimate, std::uint64_t count, float share,
                          Store store, float* out, float* next, std::uint32_t* nonfinite);

  // damped_feedback (rules/damped_feedback.h), of the input's values: with a part of what is owed and less the
  // estimates (null: zeros); and what is owed then, where `received` was taken for the values
  void (*add_owed)(Queue, const EncodeInput& input, float part, const float* owed, const float* estimate,
                   std::uint64_t count, float* values);
  void (*keep_owed)(Queue, const EncodeInput& input, const float* owed, const float* received, std::uint64_t count,
                    float* next);

  // hits (rules/hits.h): decoded values of one rank to sums and to the numbers of hits; Store::assign for those of the
  // first rank. Then the sums, in their place, divided
  void (*add_hits)(Queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits);
  void (*divide_by_hits)(Queue, const float* hits, float weight, std::uint64_t count, float* sum);

  // adamw, of states of one format
  void (*adamw)(Queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands);
  void (*frozen_adamw)(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);

  // lamb
  void (*lamb_moments)(Queue, const rules::LambStep& step, std::uint64_t count, const float* gradient, float* mean,
                       float* square);
  void (*lamb_direction)(Queue, const rules::LambStep& step, std::uint64_t count, const float* parameter,
                         const float* mean, const float* square, float* direction);

  // lion: gradients in `values` become updates, `next` the momentum that is kept; a step by the signs of updates; both
  // in one, with the momentum in its place
  void (*mix_momentum)(Queue, const rules::MomentumMix& mix, std::uint64_t count, float* values, const float* momentum,
                       float* next);
  void (*sign_step)(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);
  void (*lion)(Queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands);

  // zero_one_adam: turns gradients in `values` into what is sent; a step that is not sent; the step after one that
  // was, for which `anchor` may be `parameter`
  void (*zero_one_send)(Queue, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                        const float* preconditioner, const float* momentum, const float* update);
  void (*zero_one_local)(Queue, const rules::ZeroOneStep& step, std::uint64_t count, const float* gradient,
                         const float* preconditioner, const float* anchor, float* parameter, float* momentum,
                         float* update);
  void (*zero_one_sync)(Queue, float decay, float share, std::uint64_t count, float* anchor, float* parameter,
                        float* momentum, float* update);

  // outer_step: ends a round of local steps
  void (*outer_step)(Queue, const rules::OuterStep& step, std::uint64_t count, const float* difference, float* momentum,
                     float* anchor, float* parameter);
};

}  // namespace octavo
