// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

void adamw(Queue, const rules::AdamWStep& step, std::uint64_t count, const float* gradient, float* parameter,
           float* mean, float* square) {
  for (std::uint64_t i = 0; i < count; ++i) rules::adamw(step, gradient[i], parameter[i], mean[i], square[i]);
}

void frozen_adamw(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::frozen_adamw(decay, step_size, parameter[i], update[i]);
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
