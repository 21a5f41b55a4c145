// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include "octavo/kernels/reference/step_blocks.h"
#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/state_block.h"

namespace octavo::reference {

void adamw(Queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands) {
  for_step_blocks(operands, count, [&](const StepOperands& block, std::uint64_t size) {
    MomentumBlock mean(block.mean, size);
    VarianceBlock square(block.square, size);
    update_elements(block, size, [&](float gradient, float& parameter, std::uint64_t i) {
      return rules::adamw(step, gradient, parameter, mean[i], square[i]);
    });
    mean.store();
    square.store();
  });
}

void frozen_adamw(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::frozen_adamw(decay, step_size, parameter[i], update[i]);
  }
}

}  // namespace octavo::reference
