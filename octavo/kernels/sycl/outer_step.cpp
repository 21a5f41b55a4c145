// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void outer_step(Queue queue, const rules::OuterStep& step, std::uint64_t count, const float* difference,
                float* momentum, float* anchor, float* parameter) {
  launch_elements(queue, {"outer_step", "outer_step"}, count, step, count, difference, momentum, anchor, parameter);
}

}  // namespace octavo::sycl_backend
