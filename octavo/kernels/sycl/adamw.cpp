// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void adamw(Queue queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands) {
  launch_spans(queue, {"adamw", "adamw", step_options(operands)}, count, step, count, operands);
}

void frozen_adamw(Queue queue, float decay, float step_size, std::uint64_t count, const float* update,
                  float* parameter) {
  launch_elements(queue, {"adamw", "frozen_adamw"}, count, decay, step_size, count, update, parameter);
}

}  // namespace octavo::sycl_backend
