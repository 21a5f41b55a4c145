// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/threshold.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void count_large(Queue queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts) {
  const std::uint64_t chunks = sycl_span::divide_up(count, rules::kCountChunk);
  launch_groups(queue, {"threshold", "count_large"}, chunks, values, count, least, counts);
}

}  // namespace octavo::sycl_backend
