// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include "octavo/kernels/cpu/step_blocks.h"
#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

void adamw(Queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands) {
  using rules::Momentum8, rules::Momentum4, rules::Variance8, rules::Variance4;
  bool all_finite = true;
  for_step_blocks(operands, count, [&](const StepOperands& block, auto size) {
    StepBuffer parameters, gradients, means, squares;
    float* p = load_parameters(block, size, parameters);
    const float* g = load_gradients(block, size, gradients);
    float* m = load_state<Momentum8, Momentum4>(block.mean, size, means);
    float* v = load_state<Variance8, Variance4>(block.square, size, squares);
    // A copy of the rule, which no store of a float can change; and values of their own, because of a choice between a
    // new value and what memory has compilers make masked stores, on which AVX2 may take longer than on all the rest.
    const rules::AdamWStep rule = step;
    all_finite &= update_elements(size, [&](std::uint64_t i) {
      float parameter = p[i], mean = m[i], square = v[i];
      const bool finite = rules::adamw(rule, g[i], parameter, mean, square);
      p[i] = parameter;
      m[i] = mean;
      v[i] = square;
      return finite;
    });
    const StateScales mean_scales = scales_of<Momentum8, Momentum4>(block.mean, size, means);
    const StateScales square_scales = scales_of<Variance8, Variance4>(block.square, size, squares);
    store_parameters(block, size, parameters);
    store_state<Momentum8, Momentum4>(block.mean, size, mean_scales, means);
    store_state<Variance8, Variance4>(block.square, size, square_scales, squares);
  });
  report(all_finite, operands.nonfinite);
}

void frozen_adamw(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::frozen_adamw(decay, step_size, parameter[i], update[i]);
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
