// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/dgc.h"

#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

void correct_momentum(Queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                      std::uint64_t count, float* next) {
  if (!velocity) {
    for (std::uint64_t i = 0; i < count; ++i) {
      next[i] = rules::velocity(momentum, 0.0F, rules::contribution(gradient_weight, gradient[i]));
    }
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    next[i] = rules::velocity(momentum, velocity[i], rules::contribution(gradient_weight, gradient[i]));
  }
}

void mask_momentum(Queue, const float* sent, std::uint64_t count, float* velocity) {
  for (std::uint64_t i = 0; i < count; ++i) velocity[i] = rules::masked_velocity(velocity[i], sent[i]);
}

}  // namespace octavo::cpu::OCTAVO_ISA
