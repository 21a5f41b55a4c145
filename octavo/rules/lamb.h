// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// LAMB (You et al. 2020): Adam's direction, and a step whose size is a part of the tensor's own.
namespace octavo::rules {

struct LambStep {
  float beta1_complement;  // 1 - beta1, formed in double
  float beta2;
  float beta2_complement;  // 1 - beta2, formed in double
  float bias1;             // 1 - beta1^t, formed in double
  float sqrt_bias2;        // sqrt(1 - beta2^t), formed in double
  float eps;
  float weight_decay;
};

OCTAVO_RULE void lamb_moments(const LambStep& s, float gradient, float& mean, float& square) {
  // from the nearer of both: adamw_mean()
  mean = s.beta1_complement < 0.5F ? mean + s.beta1_complement * (gradient - mean)
                                   : gradient + (s.beta1_complement - 1) * (gradient - mean);
  square = s.beta2 * square + s.beta2_complement * (gradient * gradient);
}

/// What a step goes along; its size is lr times the norm of the parameter over that of the direction.
OCTAVO_RULE float lamb_direction(const LambStep& s, float parameter, float mean, float square) {
  const float denominator = __builtin_sqrtf(square) / s.sqrt_bias2 + s.eps;
  return mean / s.bias1 / denominator + s.weight_decay * parameter;
}

}  // namespace octavo::rules
