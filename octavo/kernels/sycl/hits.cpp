// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/hits.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void add_hits(Queue queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits) {
  launch_spans(queue, {"hits", "add_hits"}, count, values, count, how, sum, hits);
}

void divide_by_hits(Queue queue, const float* hits, float weight, std::uint64_t count, float* sum) {
  launch_spans(queue, {"hits", "divide_by_hits"}, count, hits, weight, count, sum);
}

}  // namespace octavo::sycl_backend
