// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/top_k.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void select_top(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, float* scratch,
                float* values, std::uint32_t* indices, rules::Residual* next) {
  launch_groups(queue, {"top_k", "select_top"}, shape.tiles(count), in, count, shape, scratch, values, indices, next);
}

void settle_top(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, const float* values,
                const float* sent, const std::uint32_t* indices, rules::Residual* next) {
  launch_groups(queue, {"top_k", "settle_top"}, shape.tiles(count), in, count, shape, values, sent, indices, next);
}

void gather_top(Queue queue, const EncodeInput& in, const std::uint32_t* indices, std::uint64_t count,
                const rules::TopK& shape, float* values, rules::Residual* next) {
  if (next) launch_spans(queue, {"top_k", "leave_all"}, count, in, count, next);
  launch_groups(queue, {"top_k", "gather_top"}, shape.tiles(count), in, indices, count, shape, values, next);
}

void scatter_top(Queue queue, const float* sent, const std::uint32_t* indices, std::uint64_t count,
                 const rules::TopK& shape, Store how, float* out, std::uint32_t* nonfinite) {
  launch_groups(queue, {"top_k", "scatter_top"}, shape.tiles(count), sent, indices, count, shape, how, out, nonfinite);
}

}  // namespace octavo::sycl_backend
