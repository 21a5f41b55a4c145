// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The step that ends a round of local steps (DiLoCo, Douillard et al. 2023). It is the Nesterov step of
/// torch.optim.SGD, with the same bits where torch uses fused multiply-add. It goes along the mean over ranks of the
/// anchor less a rank's parameters; the anchor is the same on all ranks. Where the momentum is spread, ranks have made
/// its part of the step already, in equal parts during the round, and the anchor takes the plain step of SGD with
/// momentum (Polyak 1964).
namespace octavo::rules {

struct OuterStep {
  float minus_lr;
  float momentum;   // the share of the momentum that is kept
  float own_share;  // the share that a rank keeps of its own parameter; the rest is the anchor's
  bool is_spread = false;
};

/// Moves the anchor and the momentum, and returns the parameter. `momentum`: zero at first.
OCTAVO_RULE float outer_step(const OuterStep& s, float difference, float parameter, float& momentum, float& anchor) {
  momentum = s.momentum * momentum + difference;
  const float direction = s.is_spread ? momentum : __builtin_fmaf(momentum, s.momentum, difference);
  anchor = __builtin_fmaf(direction, s.minus_lr, anchor);
  return s.own_share == 0.0F ? anchor : anchor + s.own_share * (parameter - anchor);
}

}  // namespace octavo::rules
