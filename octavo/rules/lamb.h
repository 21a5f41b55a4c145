// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// LAMB (You et al. 2020): a step in Adam's direction, whose size is proportional to the norm of the tensor itself.
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

/// Updates both moments. A gradient whose square is not finite changes nothing: it would stop its element for ever
/// (adamw_takes()).
OCTAVO_RULE void lamb_moments(const LambStep& s, float gradient, float& mean, float& square) {
  const float squared = gradient * gradient;
  // The sum starts from whichever of the two is nearer to the result, as in adamw_mean().
  const float moved = s.beta1_complement < 0.5F ? mean + s.beta1_complement * (gradient - mean)
                                                : gradient + (s.beta1_complement - 1) * (gradient - mean);
  mean = chosen(is_finite(squared), moved, mean);
  square = chosen(is_finite(squared), s.beta2 * square + s.beta2_complement * squared, square);
}

/// Returns the direction of a step. The step is the direction times lr times the norm of the parameter / the norm of
/// the direction (optim/lamb.cpp bounds this quotient).
OCTAVO_RULE float lamb_direction(const LambStep& s, float parameter, float mean, float square) {
  const float denominator = __builtin_sqrtf(square) / s.sqrt_bias2 + s.eps;
  return mean / s.bias1 / denominator + s.weight_decay * parameter;
}

}  // namespace octavo::rules
