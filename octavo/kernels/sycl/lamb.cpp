// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void lamb_moments(Queue queue, const rules::LambStep& step, std::uint64_t count, const float* gradient, float* mean,
                  float* square) {
  launch_elements(queue, {"lamb", "lamb_moments"}, count, step, count, gradient, mean, square);
}

void lamb_direction(Queue queue, const rules::LambStep& step, std::uint64_t count, const float* parameter,
                    const float* mean, const float* square, float* direction) {
  launch_elements(queue, {"lamb", "lamb_direction"}, count, step, count, parameter, mean, square, direction);
}

}  // namespace octavo::sycl_backend
