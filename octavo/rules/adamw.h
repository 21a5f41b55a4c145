// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// AdamW (Loshchilov & Hutter 2019) and Adam (Kingma & Ba 2015), with the operations in the order of torch.optim, and
/// the step that 1-bit Adam (Tang et al. 2021) makes after its variance is frozen.
namespace octavo::rules {

struct AdamWStep {
  float decay;             // 1 - lr * weight_decay
  float step_size;         // lr / (1 - beta1^t)
  float beta1_complement;  // 1 - beta1, formed in double
  float beta2;
  float beta2_complement;  // 1 - beta2, formed in double
  float root_scale;        // 1 / sqrt(1 - beta2^t), formed in double
  float eps;
  float coupled_decay = 0.0F;  // Adam's weight decay: the parameter times this is added to the gradient
};

// The step is in two parts, the moments and the parameter, so that a kernel may do something else between them. `Float`
// is a float, or several floats that a kernel handles as one value.

/// Returns the gradient plus what Adam's weight decay adds to it. The moments are worked out from the result.
template <class Float>
OCTAVO_RULE Float adamw_gradient(const AdamWStep& s, Float gradient, Float parameter) {
  return s.coupled_decay == 0.0F ? gradient : fused(s.coupled_decay, parameter, gradient);
}

/// Whether a gradient may make a step. A square that is not finite would stop its element for ever or, where the state
/// is kept in codes, spoil its block.
template <class Float>
OCTAVO_RULE auto adamw_takes(Float gradient) {
  return is_finite(gradient * gradient);
}

/// Returns the mean moved towards the gradient. The sum starts from whichever of the two is nearer to the result, as in
/// torch.lerp: with a mean of 1e8 and a beta1 of 0, a sum that starts from the mean would lose a gradient of 1.
template <class Float>
OCTAVO_RULE Float adamw_mean(float beta1_complement, Float gradient, Float mean) {
  return beta1_complement < 0.5F ? fused(beta1_complement, gradient - mean, mean)
                                 : fused(beta1_complement - 1, gradient - mean, gradient);
}

/// Updates both moments. A gradient that adamw_takes() refuses leaves a square that is not finite.
template <class Float>
OCTAVO_RULE void adamw_moments(const AdamWStep& s, Float gradient, Float& mean, Float& square) {
  mean = adamw_mean(s.beta1_complement, gradient, mean);
  square = fused(s.beta2_complement, gradient * gradient, s.beta2 * square);
}

/// Updates both moments where adamw_takes(gradient) is true; where it is false, nothing changes. Returns
/// adamw_takes(gradient).
template <class Float>
OCTAVO_RULE auto adamw_taken_moments(const AdamWStep& s, Float gradient, Float& mean, Float& square) {
  const auto taken = adamw_takes(gradient);
  Float next_mean = mean, next_square = square;
  adamw_moments(s, gradient, next_mean, next_square);
  mean = chosen(taken, next_mean, mean);
  square = chosen(taken, next_square, square);
  return taken;
}

/// Returns the parameter after a step along these moments.
template <class Float>
OCTAVO_RULE Float adamw_moved(const AdamWStep& s, Float parameter, Float mean, Float square) {
  const Float denominator = fused(s.root_scale, square_root(square), s.eps);
  return fused(-s.step_size, mean / denominator, parameter * s.decay);
}

OCTAVO_RULE bool adamw(const AdamWStep& s, float gradient, float& parameter, float& mean, float& square) {
  const bool taken = adamw_taken_moments(s, adamw_gradient(s, gradient, parameter), mean, square);
  parameter = chosen(taken, adamw_moved(s, parameter, mean, square), parameter);
  return taken;
}

/// Returns the parameter after a step of 1-bit Adam. `update`: the preconditioned momentum, averaged over all ranks, as
/// it was received.
OCTAVO_RULE float frozen_adamw(float decay, float step_size, float parameter, float update) {
  return parameter * decay - step_size * update;
}

}  // namespace octavo::rules
