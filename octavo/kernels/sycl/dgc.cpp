// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/dgc.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void correct_momentum(Queue queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                      std::uint64_t count, float* next) {
  launch_spans(queue, {"dgc", "correct_momentum"}, count, momentum, gradient_weight, gradient, velocity, count, next);
}

void mask_momentum(Queue queue, const float* sent, std::uint64_t count, float* velocity) {
  launch_spans(queue, {"dgc", "mask_momentum"}, count, sent, count, velocity);
}

}  // namespace octavo::sycl_backend
