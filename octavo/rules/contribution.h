// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The value that is encoded. The order of the operations is part of the rule; no fused multiply-add.
namespace octavo::rules {

/// A rank's contribution to an element: its gradient,
OCTAVO_RULE float contribution(float gradient_weight, float gradient) { return gradient_weight * gradient; }

/// or its momentum beta*m + (1-beta)*(g*preconditioner).
OCTAVO_RULE float contribution(float gradient_weight, float gradient, float preconditioner, float momentum_weight,
                               float momentum) {
  return gradient_weight * (gradient * preconditioner) + momentum_weight * momentum;
}

/// The contributions of all ranks; a weight of 1/W makes the sum an average.
OCTAVO_RULE float sum_of(float own, float others, float weight) { return weight * (own + others); }

}  // namespace octavo::rules
