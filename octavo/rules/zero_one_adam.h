// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The steps of 0/1 Adam (Lu et al. 2022, algorithm 1), where most steps send nothing.
///
/// Momenta are kept preconditioned, as a mean of gradient / root of the variance: the update of a step is step_size
/// times the momentum. A rank makes a local step by a momentum of its own, and sums its updates up since the parameters
/// were last the same on all ranks; those parameters are the anchor, and the rank's are anchor - sum. From the mean of
/// the sums, on a step that is sent, all ranks make the same parameters and the same momentum.
namespace octavo::rules {

struct ZeroOneStep {
  float beta;
  float gradient_weight;  // 1 - beta, over the loss scale; formed in double
  float step_size;        // the learning rate over 1 - beta^t; formed in double
};

OCTAVO_RULE float zero_one_momentum(const ZeroOneStep& s, float gradient, float preconditioner, float momentum) {
  return s.beta * momentum + s.gradient_weight * (gradient * preconditioner);
}

/// The sum of updates with that of this step, which a rank sends.
OCTAVO_RULE float zero_one_sent(const ZeroOneStep& s, float gradient, float preconditioner, float momentum,
                                float update) {
  return update + s.step_size * zero_one_momentum(s, gradient, preconditioner, momentum);
}

/// A step that is not sent; returns the rank's parameter.
OCTAVO_RULE float zero_one_local(const ZeroOneStep& s, float gradient, float preconditioner, float anchor,
                                 float& momentum, float& update) {
  momentum = zero_one_momentum(s, gradient, preconditioner, momentum);
  update = update + s.step_size * momentum;
  return anchor - update;
}

/// Ends a round of steps: `update` is the mean of the ranks' sums, `decay` what weight decay leaves of the anchor, and
/// `share` 1 over the sum of the round's step sizes. Returns the parameter, the same on all ranks.
OCTAVO_RULE float zero_one_sync(float decay, float share, float anchor, float& momentum, float& update) {
  const float parameter = decay * anchor - update;
  momentum = share * update;
  update = 0.0F;
  return parameter;
}

}  // namespace octavo::rules
