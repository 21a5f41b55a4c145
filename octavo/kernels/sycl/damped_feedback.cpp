// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/damped_feedback.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void add_owed(Queue queue, const EncodeInput& in, float part, const float* owed, const float* estimate,
              std::uint64_t count, float* values) {
  launch_spans(queue, {"damped_feedback", "add_owed"}, count, in, part, owed, estimate, count, values);
}

void keep_owed(Queue queue, const EncodeInput& in, const float* owed, const float* received, std::uint64_t count,
               float* next) {
  launch_spans(queue, {"damped_feedback", "keep_owed"}, count, in, owed, received, count, next);
}

}  // namespace octavo::sycl_backend
