// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// Steps of one size for every element, by the sign of an update: Lion (Chen et al. 2023), and Signum (Bernstein et al.
/// 2018), which is Lion with both betas alike.
namespace octavo::rules {

/// What a gradient and the momentum before it make: the update, beta1*m + (1-beta1)*g, and the momentum that is kept,
/// beta2*m + (1-beta2)*g.
struct MomentumMix {
  float update_beta;
  float update_complement;  // 1 - beta1, over the loss scale; formed in double
  float kept_beta;
  float kept_complement;  // 1 - beta2, likewise
};

/// Turns `value`, a gradient, into the update; returns the momentum that is kept.
OCTAVO_RULE float mix_momentum(const MomentumMix& mix, float& value, float momentum) {
  const float gradient = value;
  value = mix.update_beta * momentum + mix.update_complement * gradient;
  return mix.kept_beta * momentum + mix.kept_complement * gradient;
}

/// +1, -1 or, for a zero, 0; a NaN stays one.
OCTAVO_RULE float sign_of(float value) {
  const float sign = value > 0.0F ? 1.0F : -1.0F;
  const bool has_sign = (value > 0.0F) | (value < 0.0F);  // without a branch, which no vector has
  return has_sign ? sign : value;
}

/// `decay`: 1 - lr * weight_decay; `step_size`: lr.
OCTAVO_RULE float sign_step(float decay, float step_size, float parameter, float update) {
  return parameter * decay - step_size * sign_of(update);
}

/// A whole step of Lion by one rank alone.
struct LionStep {
  float decay;
  float step_size;
  MomentumMix mix;
};

/// Returns whether the gradient is finite; where it is not, nothing changes.
OCTAVO_RULE bool lion(const LionStep& s, float gradient, float& parameter, float& momentum) {
  const bool finite = is_finite(gradient);
  float update = gradient;
  const float next_momentum = mix_momentum(s.mix, update, momentum);
  const float moved = sign_step(s.decay, s.step_size, parameter, update);
  parameter = finite ? moved : parameter;
  momentum = finite ? next_momentum : momentum;
  return finite;
}

}  // namespace octavo::rules
