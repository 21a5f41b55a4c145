// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/random_k.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void select_random(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape,
                   float* values) {
  launch_spans(queue, {"random_k", "select_random"}, shape.kept_in(count), in, count, shape, values);
  launch_spans(queue, {"random_k", "mark_nonfinite"}, count, in, count, shape.stride, values);
}

void settle_random(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape,
                   const float* sent, rules::Residual* next) {
  launch_spans(queue, {"random_k", "settle_random"}, count, in, count, shape, sent, next);
}

void scatter_random(Queue queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store how,
                    float* out, std::uint32_t* nonfinite) {
  launch_spans(queue, {"random_k", "scatter_random"}, count, sent, count, shape, how, out, nonfinite);
}

}  // namespace octavo::sycl_backend
