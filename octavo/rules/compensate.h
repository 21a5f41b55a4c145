// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

namespace octavo::rules {

/// The value that a rank sends: its gradient, or its momentum beta*m + (1-beta)*(g*preconditioner), plus what it could
/// not send before. The order of the operations is part of the rule; no fused multiply-add.
OCTAVO_RULE float compensate(float gradient_weight, float gradient, float preconditioner, float momentum_weight,
                             float momentum, float residual) {
  return (gradient_weight * (gradient * preconditioner) + momentum_weight * momentum) + residual;
}

}  // namespace octavo::rules
