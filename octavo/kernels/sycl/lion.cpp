// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

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

}  // namespace octavo::sycl_backend
