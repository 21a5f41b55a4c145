// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// Steps that have the same size for every element and follow the sign of an update: Lion (Chen et al. 2023), and
/// Signum (Bernstein et al. 2018), which is Lion with two equal betas.
namespace octavo::rules {

/// The weights with which a gradient g and the momentum m before it make the update, beta1*m + (1-beta1)*g, and the
/// momentum that is kept, beta2*m + (1-beta2)*g.
struct MomentumMix {
  float update_beta;
  float update_complement;  // (1 - beta1) / loss scale, formed in double
  float kept_beta;
  float kept_complement;  // (1 - beta2) / loss scale, formed in double
};

/// Turns `value`, a gradient, into the update; returns the momentum that is kept.
template <class Float>
OCTAVO_RULE Float mix_momentum(const MomentumMix& mix, Float& value, Float momentum) {
  const Float gradient = value;
  value = mix.update_beta * momentum + mix.update_complement * gradient;
  return mix.kept_beta * momentum + mix.kept_complement * gradient;
}

/// Returns +1, -1 or, for a zero, the zero; a NaN stays a NaN.
OCTAVO_RULE float sign_of(float value) {
  const float sign = value > 0.0F ? 1.0F : -1.0F;
  const bool has_sign = (value > 0.0F) | (value < 0.0F);  // no branch, because vectors have none
  return has_sign ? sign : value;
}

/// Returns the parameter after a step by the sign of an update. `decay`: 1 - lr * weight_decay; `step_size`: lr.
template <class Float>
OCTAVO_RULE Float sign_step(float decay, float step_size, Float parameter, Float update) {
  return parameter * decay - step_size * sign_of(update);
}

/// A whole step of Lion that one rank makes alone.
struct LionStep {
  float decay;
  float step_size;
  MomentumMix mix;
};

/// Makes a step of Lion. Returns whether the gradient is finite; where it is not, nothing changes. `Float`: as in
/// adamw.h.
template <class Float>
OCTAVO_RULE auto lion(const LionStep& s, Float gradient, Float& parameter, Float& momentum) {
  const auto finite = is_finite(gradient);
  Float update = gradient;
  const Float next_momentum = mix_momentum(s.mix, update, momentum);
  const Float moved = sign_step(s.decay, s.step_size, parameter, update);
  parameter = chosen(finite, moved, parameter);
  momentum = chosen(finite, next_momentum, momentum);
  return finite;
}

}  // namespace octavo::rules
