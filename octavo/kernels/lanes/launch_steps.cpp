// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/lanes/launch.h"
#include "octavo/kernels/lanes/table.h"

/// Enqueues the kernels of the optimizers' steps.
namespace octavo::lanes {

void adamw(Queue queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands) {
  launch_spans(queue, {"adamw", "adamw", step_options(operands)}, count, step, count, operands);
}

void frozen_adamw(Queue queue, float decay, float step_size, std::uint64_t count, const float* update,
                  float* parameter) {
  launch_elements(queue, {"adamw", "frozen_adamw"}, count, decay, step_size, count, update, parameter);
}

void lamb_moments(Queue queue, const rules::LambStep& step, std::uint64_t count, const float* gradient, float* mean,
                  float* square) {
  launch_elements(queue, {"lamb", "lamb_moments"}, count, step, count, gradient, mean, square);
}

void lamb_direction(Queue queue, const rules::LambStep& step, std::uint64_t count, const float* parameter,
                    const float* mean, const float* square, float* direction) {
  launch_elements(queue, {"lamb", "lamb_direction"}, count, step, count, parameter, mean, square, direction);
}

void mix_momentum(Queue queue, const rules::MomentumMix& mix, std::uint64_t count, float* values, const float* momentum,
                  float* next) {
  launch_elements(queue, {"lion", "mix_momentum"}, count, mix, count, values, momentum, next);
}

void sign_step(Queue queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  launch_elements(queue, {"lion", "sign_step"}, count, decay, step_size, count, update, parameter);
}

void lion(Queue queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands) {
  launch_spans(queue, {"lion", "lion", step_options(operands)}, count, step, count, operands);
}

void zero_one_send(Queue queue, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                   const float* preconditioner, const float* momentum, const float* update) {
  launch_elements(queue, {"zero_one_adam", "zero_one_send"}, count, step, count, values, preconditioner, momentum,
                  update);
}

void zero_one_local(Queue queue, const rules::ZeroOneStep& step, std::uint64_t count, const float* gradient,
                    const float* preconditioner, const float* anchor, float* parameter, float* momentum,
                    float* update) {
  launch_elements(queue, {"zero_one_adam", "zero_one_local"}, count, step, count, gradient, preconditioner, anchor,
                  parameter, momentum, update);
}

void zero_one_sync(Queue queue, float decay, float share, std::uint64_t count, float* anchor, float* parameter,
                   float* momentum, float* update) {
  launch_elements(queue, {"zero_one_adam", "zero_one_sync"}, count, decay, share, count, anchor, parameter, momentum,
                  update);
}

void outer_step(Queue queue, const rules::OuterStep& step, std::uint64_t count, const float* difference,
                float* momentum, float* anchor, float* parameter) {
  launch_elements(queue, {"outer_step", "outer_step"}, count, step, count, difference, momentum, anchor, parameter);
}

}  // namespace octavo::lanes
