// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "octavo/kernels/kernel_names.h"
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
/// The contract of all entries: buffers do not overlap unless the entry says so. They begin at any multiple of an
/// element's size, and have any count of elements, 0 included. An entry throws Error only where a device does not take
/// its kernel, or cannot compile it. Submissions to one device may wait for each other; on the CPU nothing locks. None
/// allocates, except `reference`, whose top-k sorts a list of its own. A kernel is enqueued on the Queue that it is
/// given and not waited for; its memory is that of the queue's device. device/dispatch.h finds the table and the queue.
/// On the CPU the Queue is the calling thread (`{}`), and calls on disjoint ranges may run at the same time.
namespace octavo {

/// Encodes `count` values in blocks of `block` elements (the last may be shorter). Writes value - decoded, rounded by
/// rules/residual.h, to `next_residual` (null: not wanted; never the same memory as input.residual). A block that is
/// not rules::is_sendable() gets a NaN scale and a next residual of 0.
using EncodeKernel = void(Queue, const EncodeInput& input, std::uint64_t count, std::uint64_t block, Payload payload,
                          rules::Residual* next_residual);
/// Decodes to `out`, or adds to it. Sets *nonfinite (null: not wanted) to 1 where a decoded value is a NaN or an
/// infinity, or another code of its block would be, and otherwise does not write it; several calls may share it.
using DecodeKernel = void(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store store, float* out,
                          std::uint32_t* nonfinite);

struct CodecKernels {
  EncodeKernel* encode;
  DecodeKernel* decode;
};

/// Returns the number of floats of scratch memory that select_top needs: for the values and, after them, for what
/// processors keep of a tile, or for the index words that devices build.
inline std::uint64_t top_k_scratch(std::uint64_t count, const rules::TopK& shape) {
  const std::uint64_t tile = std::min(shape.tile, count);
  return count + std::max(tile / 2 + 256, rules::index_words(shape, count));
}

/// kernel_names.h has the names of the functions.
struct KernelTable {
  const char* name;                        // "reference", "avx512", "sycl", ...
  const DeviceRuntime* runtime = nullptr;  // null: ordinary memory, no streams
  const ManagedMemory* managed = nullptr;  // null: the back end has none

  // block_codec: in the order of BlockCodec
  CodecKernels block_codecs[kBlockCodecs];
  const CodecKernels& of(BlockCodec codec) const { return block_codecs[static_cast<std::size_t>(codec)]; }

  // lossless (rules/lossless.h): measure_words chooses the codes for each block of words. pack_words writes the packed
  // bytes, one block after another. unpack_words writes the words again and returns whether there were as many escapes
  // as the blocks say. In every back end they work on the host's memory, on the calling thread, because messages lie
  // there.
  void (*measure_words)(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks);
  void (*pack_words)(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks,
                     std::uint8_t* packed);
  bool (*unpack_words)(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                       std::uint16_t* words);

  // sign_bits: `value_bytes` is the width of an element, 1, 2, 4 or 8
  void (*pack_sign_bits)(Queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits);
  void (*unpack_sign_bits)(Queue, const std::uint8_t* bits, std::uint64_t count, float* values);

  // top_k (rules/top_k.h): writes the largest values of every tile to `values`, one tile after another, and their
  // indices to rules::index_words() words at a multiple of 4 bytes. Writes all values as what is left over to
  // next_residual (null: not wanted), 0 for those that are not finite. `scratch`: top_k_scratch() floats of the device.
  void (*select_top)(Queue, const EncodeInput& input, std::uint64_t count, const rules::TopK& shape, float* scratch,
                     float* values, std::uint32_t* indices, rules::Residual* next_residual);
  // Corrects next_residual: writes what is left over of the selected values, for which `sent` was sent.
  void (*settle_top)(Queue, const EncodeInput& input, std::uint64_t count, const rules::TopK& shape,
                     const float* values, const float* sent, const std::uint32_t* indices,
                     rules::Residual* next_residual);
  // Writes the input's values at these indices to `values`. Writes all other values as what is left over to
  // next_residual (null: not wanted), 0 for the values at these indices and for those that are not finite.
  void (*gather_top)(Queue, const EncodeInput& input, const std::uint32_t* indices, std::uint64_t count,
                     const rules::TopK& shape, float* values, rules::Residual* next_residual);
  // Writes the selected values to their places, 0 elsewhere; `store` and `nonfinite` as in DecodeKernel.
  void (*scatter_top)(Queue, const float* sent, const std::uint32_t* indices, std::uint64_t count,
                      const rules::TopK& shape, Store store, float* out, std::uint32_t* nonfinite);

  // threshold (rules/threshold.h): counts how many of each rules::kCountChunk values, or fewer at the end, have
  // magnitude_bits of at least `least`.
  void (*count_large)(Queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts);

  // random_k (rules/random_k.h): select_random writes what is kept to `values`. settle_random writes what is left over
  // of all values where `sent` was sent for those that are kept, 0 for values that are not finite. scatter_random
  // writes what was sent to its places, 0 elsewhere; `store` and `nonfinite` as in DecodeKernel.
  void (*select_random)(Queue, const EncodeInput& input, std::uint64_t count, const rules::RandomK& shape,
                        float* values);
  void (*settle_random)(Queue, const EncodeInput& input, std::uint64_t count, const rules::RandomK& shape,
                        const float* sent, rules::Residual* next_residual);
  void (*scatter_random)(Queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store store,
                         float* out, std::uint32_t* nonfinite);

  // count_sketch (rules/count_sketch.h): adds values to the cells of a part of the blocks of a sketch, a float [rows,
  // columns], and touches no other cells. Calls for disjoint parts may run at the same time. Elements are numbered from
  // input.first on.
  void (*insert_sketch)(Queue, const EncodeInput& input, std::uint64_t count, const rules::CountSketch& shape,
                        rules::SketchBlocks part, float* sketch);
  // Estimates the elements from number `first` on.
  void (*estimate_sketch)(Queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                          std::uint64_t count, float* estimates);

  // low_rank (rules/low_rank.h): the input is the whole matrix. find_left_factor finds `count` rows, from `first` on,
  // of the left factor that belongs to a right factor; find_right_factor finds columns of the right factor that belongs
  // to a left one. multiply_factors writes rows of the product to `out`, which may lie where the gradient is, and what
  // it leaves over to next_residual (null: not wanted); `nonfinite` as in DecodeKernel.
  void (*find_left_factor)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                           std::uint64_t count, const float* right, float* left);
  void (*find_right_factor)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                            std::uint64_t count, const float* left, float* right);
  void (*multiply_factors)(Queue, const EncodeInput& input, const rules::LowRank& shape, std::uint64_t first,
                           std::uint64_t count, const float* left, const float* right, float* out,
                           rules::Residual* next_residual, std::uint32_t* nonfinite);

  // gradient_power: finds rules::chunk_power for the chunks that begin at every multiple of `stride` below `count`. A
  // chunk is rules::kPowerChunk elements, or fewer at the end.
  void (*chunk_powers)(Queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers);

  // residual: writes, or adds, residuals times a decay. They are rounded by the random bits that elements from number
  // `first` on draw from the key.
  void (*decay_residual)(Queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                         std::uint64_t count, Store store, rules::Residual* decayed);

  // dgc (rules/dgc.h): correct_momentum writes to `next`, which may be the same memory as `velocity`, the velocities
  // after gradient_weight*gradient; `velocity` has those before it (null: zeros). mask_momentum sets the velocities of
  // values that were sent to 0.
  void (*correct_momentum)(Queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                           std::uint64_t count, float* next);
  void (*mask_momentum)(Queue, const float* sent, std::uint64_t count, float* velocity);

  // ef21 (rules/ef21.h): writes the differences of the input's values to their estimates (null: zeros).
  void (*subtract_estimate)(Queue, const EncodeInput& input, const float* estimate, std::uint64_t count,
                            float* difference);
  // Writes the values that were sent as differences to `out` and the next estimates to `next`; null: not wanted. Where
  // `estimate` is null, the estimates are zeros. `store` and `nonfinite` as in DecodeKernel.
  void (*add_to_estimate)(Queue, const float* sent, const float* estimate, std::uint64_t count, float share,
                          Store store, float* out, float* next, std::uint32_t* nonfinite);

  // damped_feedback (rules/damped_feedback.h): add_owed writes the input's values with a part of what is owed and less
  // the estimates. keep_owed writes what is owed after `received` was taken for the values. `owed` and `estimate` may
  // be null: zeros.
  void (*add_owed)(Queue, const EncodeInput& input, float part, const float* owed, const float* estimate,
                   std::uint64_t count, float* values);
  void (*keep_owed)(Queue, const EncodeInput& input, const float* owed, const float* received, std::uint64_t count,
                    float* next);

  // hits (rules/hits.h): add_hits adds the decoded values of one rank to the sums and to the numbers of hits;
  // Store::assign is for those of the first rank. divide_by_hits then divides the sums in place.
  void (*add_hits)(Queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits);
  void (*divide_by_hits)(Queue, const float* hits, float weight, std::uint64_t count, float* sum);

  // adamw: both states have the same format
  void (*adamw)(Queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands);
  void (*frozen_adamw)(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);

  // lamb
  void (*lamb_moments)(Queue, const rules::LambStep& step, std::uint64_t count, const float* gradient, float* mean,
                       float* square);
  void (*lamb_direction)(Queue, const rules::LambStep& step, std::uint64_t count, const float* parameter,
                         const float* mean, const float* square, float* direction);

  // lion: mix_momentum turns gradients in `values` into updates and writes the momentum that is kept to `next`.
  // sign_step makes a step by the signs of updates. lion does both and updates the momentum in place.
  void (*mix_momentum)(Queue, const rules::MomentumMix& mix, std::uint64_t count, float* values, const float* momentum,
                       float* next);
  void (*sign_step)(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);
  void (*lion)(Queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands);

  // zero_one_adam: zero_one_send turns gradients in `values` into what is sent. zero_one_local makes a step that is not
  // sent. zero_one_sync makes the step that follows an exchange; there `anchor` may be `parameter`.
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
