// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lion.h"

#include "octavo/kernels/cpu/step_blocks.h"
#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

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
  using rules::Momentum8, rules::Momentum4;
  bool all_finite = true;
  for_step_blocks(operands, count, [&](const StepOperands& block, auto size) {
    StepBuffer parameters, gradients, momenta;
    float* p = load_parameters(block, size, parameters);
    const float* g = load_gradients(block, size, gradients);
    float* m = load_state<Momentum8, Momentum4>(block.mean, size, momenta);
    const rules::LionStep rule = step;  // and values of their own, as in adamw.cpp
    all_finite &= update_elements(size, [&](std::uint64_t i) {
      float parameter = p[i], momentum = m[i];
      const bool finite = rules::lion(rule, g[i], parameter, momentum);
      p[i] = parameter;
      m[i] = momentum;
      return finite;
    });
    const StateScales scales = scales_of<Momentum8, Momentum4>(block.mean, size, momenta);
    store_parameters(block, size, parameters);
    store_state<Momentum8, Momentum4>(block.mean, size, scales, momenta);
  });
  report(all_finite, operands.nonfinite);
}

}  // namespace octavo::cpu::OCTAVO_ISA
