// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The steps of 0/1 Adam (Lu et al. 2022, algorithm 1), where most steps send nothing.
///
/// Momenta are kept preconditioned, as a mean of gradient / root of the variance: the update of a step is step_size
/// times the momentum. In a local step a rank uses a momentum of its own and adds its update to the sum of its updates
/// since the parameters were last the same on all ranks. Those parameters are the anchor, and the rank's own are anchor
/// - sum. In a step that is sent, all ranks make the same parameters and the same momentum from the mean of the sums.
namespace octavo::rules {

struct ZeroOneStep {
  float beta;
  float gradient_weight;  // (1 - beta) / loss scale, formed in double
  float step_size;        // learning rate / (1 - beta^t), formed in double
};

OCTAVO_RULE float zero_one_momentum(const ZeroOneStep& s, float gradient, float preconditioner, float momentum) {
  return s.beta * momentum + s.gradient_weight * (gradient * preconditioner);
}

/// Returns what a rank sends: the sum of its updates, with the update of this step.
OCTAVO_RULE float zero_one_sent(const ZeroOneStep& s, float gradient, float preconditioner, float momentum,
                                float update) {
  return update + s.step_size * zero_one_momentum(s, gradient, preconditioner, momentum);
}

/// Makes a step that is not sent; returns the rank's parameter.
OCTAVO_RULE float zero_one_local(const ZeroOneStep& s, float gradient, float preconditioner, float anchor,
                                 float& momentum, float& update) {
  momentum = zero_one_momentum(s, gradient, preconditioner, momentum);
  update = update + s.step_size * momentum;
  return anchor - update;
}

/// Ends a round of steps and returns the parameter, which is the same on all ranks. `update`: the mean of the ranks'
/// sums. `decay`: the factor that weight decay leaves of the anchor. `share`: 1 / sum of the round's step sizes.
OCTAVO_RULE float zero_one_sync(float decay, float share, float anchor, float& momentum, float& update) {
  const float parameter = decay * anchor - update;
  momentum = share * update;
  update = 0.0F;
  return parameter;
}

}  // namespace octavo::rules
