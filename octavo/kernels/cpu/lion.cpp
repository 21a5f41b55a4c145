// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lion.h"

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

void lion(Queue, float decay, float step_size, const rules::MomentumMix& mix, std::uint64_t count,
          const float* gradient, float* parameter, float* momentum) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float update = gradient[i];
    momentum[i] = rules::mix_momentum(mix, update, momentum[i]);
    parameter[i] = rules::sign_step(decay, step_size, parameter[i], update);
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
