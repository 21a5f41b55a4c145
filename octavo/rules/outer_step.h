// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The step that ends a round of local steps (DiLoCo, Douillard et al. 2023). It is the Nesterov step of
/// torch.optim.SGD, with the same bits where torch uses fused multiply-add. It goes along the mean over ranks of the
/// anchor less a rank's parameters; the anchor is the same on all ranks.
namespace octavo::rules {

struct OuterStep {
  float minus_lr;
  float momentum;
  float own_share;  // share that a rank keeps of its own parameter; the rest is the anchor's
};

/// Moves the anchor and the momentum, and returns the parameter. `momentum`: zero at first.
OCTAVO_RULE float outer_step(const OuterStep& s, float difference, float parameter, float& momentum, float& anchor) {
  momentum = s.momentum * momentum + difference;
  anchor = __builtin_fmaf(__builtin_fmaf(momentum, s.momentum, difference), s.minus_lr, anchor);
  return s.own_share == 0.0F ? anchor : anchor + s.own_share * (parameter - anchor);
}

}  // namespace octavo::rules
