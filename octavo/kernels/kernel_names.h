// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The functions of KernelTable beside its block_codecs, in its order: those that work on the host's memory, then those
/// that are enqueued. X is used with each name. What a back end declares, its table's entries and the fake device of
/// the tests follow from these lists.
#define OCTAVO_HOST_KERNELS(X) X(measure_words) X(pack_words) X(unpack_words)
#define OCTAVO_QUEUED_KERNELS(X) \
  X(pack_sign_bits)              \
  X(unpack_sign_bits)            \
  X(select_top)                  \
  X(settle_top)                  \
  X(gather_top)                  \
  X(scatter_top)                 \
  X(count_large)                 \
  X(select_random)               \
  X(settle_random)               \
  X(scatter_random)              \
  X(insert_sketch)               \
  X(estimate_sketch)             \
  X(find_left_factor)            \
  X(find_right_factor)           \
  X(multiply_factors)            \
  X(chunk_powers)                \
  X(decay_residual)              \
  X(correct_momentum)            \
  X(mask_momentum)               \
  X(subtract_estimate)           \
  X(add_to_estimate)             \
  X(add_owed)                    \
  X(keep_owed)                   \
  X(add_hits)                    \
  X(divide_by_hits)              \
  X(adamw)                       \
  X(frozen_adamw)                \
  X(lamb_moments)                \
  X(lamb_direction)              \
  X(mix_momentum)                \
  X(sign_step)                   \
  X(lion)                        \
  X(zero_one_send)               \
  X(zero_one_local)              \
  X(zero_one_sync)               \
  X(outer_step)
