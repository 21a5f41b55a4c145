// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/gradient_power.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void chunk_powers(Queue queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers) {
  const std::uint64_t chunks = sycl_span::divide_up(count, stride);
  launch_groups(queue, {"gradient_power", "chunk_powers"}, chunks, values, count, stride, powers);
}

}  // namespace octavo::sycl_backend
