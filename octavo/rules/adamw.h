// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// AdamW (Loshchilov & Hutter 2019, the order of torch.optim.AdamW), and the step of 1-bit Adam (Tang et al. 2021)
/// after its variance is frozen.
namespace octavo::rules {

struct AdamWStep {
  float decay;             // 1 - lr * weight_decay
  float step_size;         // lr / (1 - beta1^t)
  float beta1_complement;  // 1 - beta1, formed in double
  float beta2;
  float beta2_complement;  // 1 - beta2, formed in double
  float sqrt_bias2;        // sqrt(1 - beta2^t), formed in double
  float eps;
};

OCTAVO_RULE void adamw(const AdamWStep& s, float gradient, float& parameter, float& mean, float& square) {
  mean = mean + s.beta1_complement * (gradient - mean);
  square = s.beta2 * square + s.beta2_complement * (gradient * gradient);
  const float denominator = __builtin_sqrtf(square) / s.sqrt_bias2 + s.eps;
  parameter = parameter * s.decay - s.step_size * (mean / denominator);
}

/// `update` is the preconditioned momentum, the mean of all ranks, as it came from the wire.
OCTAVO_RULE float frozen_adamw(float decay, float step_size, float parameter, float update) {
  return parameter * decay - step_size * update;
}

}  // namespace octavo::rules
