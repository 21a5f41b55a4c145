// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/lanes/launch.h"
#include "octavo/kernels/lanes/table.h"
#include "octavo/rules/damped_feedback.h"
#include "octavo/rules/dgc.h"
#include "octavo/rules/ef21.h"
#include "octavo/rules/gradient_power.h"
#include "octavo/rules/hits.h"
#include "octavo/rules/residual.h"

/// Enqueues the kernels of error feedback, and of what is measured of gradients beside it.
namespace octavo::lanes {

void decay_residual(Queue queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                    std::uint64_t count, Store store, rules::Residual* decayed) {
  launch_spans(queue, {"residual", "decay_residual"}, count, residual, decay, key, first, count, store, decayed);
}

void add_owed(Queue queue, const EncodeInput& in, float part, const float* owed, const float* estimate,
              std::uint64_t count, float* values) {
  launch_spans(queue, {"damped_feedback", "add_owed"}, count, in, part, owed, estimate, count, values);
}

void keep_owed(Queue queue, const EncodeInput& in, const float* owed, const float* received, std::uint64_t count,
               float* next) {
  launch_spans(queue, {"damped_feedback", "keep_owed"}, count, in, owed, received, count, next);
}

void correct_momentum(Queue queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                      std::uint64_t count, float* next) {
  launch_spans(queue, {"dgc", "correct_momentum"}, count, momentum, gradient_weight, gradient, velocity, count, next);
}

void mask_momentum(Queue queue, const float* sent, std::uint64_t count, float* velocity) {
  launch_spans(queue, {"dgc", "mask_momentum"}, count, sent, count, velocity);
}

void subtract_estimate(Queue queue, const EncodeInput& in, const float* estimate, std::uint64_t count,
                       float* difference) {
  launch_spans(queue, {"ef21", "subtract_estimate"}, count, in, estimate, count, difference);
}

void add_to_estimate(Queue queue, const float* sent, const float* estimate, std::uint64_t count, float share, Store how,
                     float* out, float* next, std::uint32_t* nonfinite) {
  launch_spans(queue, {"ef21", "add_to_estimate"}, count, sent, estimate, count, share, how, out, next, nonfinite);
}

void add_hits(Queue queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits) {
  launch_spans(queue, {"hits", "add_hits"}, count, values, count, how, sum, hits);
}

void divide_by_hits(Queue queue, const float* hits, float weight, std::uint64_t count, float* sum) {
  launch_spans(queue, {"hits", "divide_by_hits"}, count, hits, weight, count, sum);
}

void chunk_powers(Queue queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers) {
  const std::uint64_t chunks = divide_up(count, stride);
  launch_groups(queue, {"gradient_power", "chunk_powers"}, chunks, values, count, stride, powers);
}

}  // namespace octavo::lanes
