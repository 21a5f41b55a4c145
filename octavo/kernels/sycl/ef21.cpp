// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/ef21.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void subtract_estimate(Queue queue, const EncodeInput& in, const float* estimate, std::uint64_t count,
                       float* difference) {
  launch_spans(queue, {"ef21", "subtract_estimate"}, count, in, estimate, count, difference);
}

void add_to_estimate(Queue queue, const float* sent, const float* estimate, std::uint64_t count, float share, Store how,
                     float* out, float* next, std::uint32_t* nonfinite) {
  launch_spans(queue, {"ef21", "add_to_estimate"}, count, sent, estimate, count, share, how, out, next, nonfinite);
}

}  // namespace octavo::sycl_backend
