// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/zero_one_adam.h"

#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

void zero_one_send(Queue, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                   const float* preconditioner, const float* momentum, const float* update) {
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = rules::zero_one_sent(step, values[i], preconditioner[i], momentum[i], update[i]);
  }
}

void zero_one_local(Queue, const rules::ZeroOneStep& step, std::uint64_t count, const float* gradient,
                    const float* preconditioner, const float* anchor, float* parameter, float* momentum,
                    float* update) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::zero_one_local(step, gradient[i], preconditioner[i], anchor[i], momentum[i], update[i]);
  }
}

void zero_one_sync(Queue, float decay, float share, std::uint64_t count, float* anchor, float* parameter,
                   float* momentum, float* update) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float moved = rules::zero_one_sync(decay, share, anchor[i], momentum[i], update[i]);
    parameter[i] = moved;
    anchor[i] = moved;
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
