// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/outer_step.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void outer_step(Queue, const rules::OuterStep& step, std::uint64_t count, const float* difference, float* momentum,
                float* anchor, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::outer_step(step, difference[i], parameter[i], momentum[i], anchor[i]);
  }
}

}  // namespace octavo::reference
