// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

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

}  // namespace octavo::sycl_backend
