// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lamb.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void lamb_moments(Queue, const rules::LambStep& step, std::uint64_t count, const float* gradient, float* mean,
                  float* square) {
  for (std::uint64_t i = 0; i < count; ++i) rules::lamb_moments(step, gradient[i], mean[i], square[i]);
}

void lamb_direction(Queue, const rules::LambStep& step, std::uint64_t count, const float* parameter, const float* mean,
                    const float* square, float* direction) {
  for (std::uint64_t i = 0; i < count; ++i) {
    direction[i] = rules::lamb_direction(step, parameter[i], mean[i], square[i]);
  }
}

}  // namespace octavo::reference
