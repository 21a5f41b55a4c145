// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lion.h"

#include "octavo/kernels/reference/step_blocks.h"
#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/state_block.h"

namespace octavo::reference {

void mix_momentum(Queue, const rules::MomentumMix& mix, std::uint64_t count, float* values, const float* momentum,
                  float* next) {
  for (std::uint64_t i = 0; i < count; ++i) next[i] = rules::mix_momentum(mix, values[i], momentum[i]);
}

void sign_step(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::sign_step(decay, step_size, parameter[i], update[i]);
  }
}

void lion(Queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands) {
  for_step_blocks(operands, count, [&](const StepOperands& block, std::uint64_t size) {
    MomentumBlock momentum(block.mean, size);
    update_elements(block, size, [&](float gradient, float& parameter, std::uint64_t i) {
      return rules::lion(step, gradient, parameter, momentum[i]);
    });
    momentum.store();
  });
}

}  // namespace octavo::reference
