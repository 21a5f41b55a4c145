// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/dgc.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void correct_momentum(Queue, float momentum, float gradient_weight, const float* gradient, const float* velocity,
                      std::uint64_t count, float* next) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float before = velocity ? velocity[i] : 0.0F;
    next[i] = rules::velocity(momentum, before, rules::contribution(gradient_weight, gradient[i]));
  }
}

void mask_momentum(Queue, const float* sent, std::uint64_t count, float* velocity) {
  for (std::uint64_t i = 0; i < count; ++i) velocity[i] = rules::masked_velocity(velocity[i], sent[i]);
}

}  // namespace octavo::reference
