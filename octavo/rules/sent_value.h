// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The value that is encoded and sent. The order of the operations is part of the rule, and none is a fused
/// multiply-add.
namespace octavo::rules {

/// Returns a rank's contribution to an element: its weighted gradient.
OCTAVO_RULE float contribution(float gradient_weight, float gradient) { return gradient_weight * gradient; }

/// Returns a rank's contribution to an element where it sends its momentum: beta*m + (1-beta)*(g*preconditioner).
OCTAVO_RULE float contribution(float gradient_weight, float gradient, float preconditioner, float momentum_weight,
                               float momentum) {
  return gradient_weight * (gradient * preconditioner) + momentum_weight * momentum;
}

/// Returns the weighted sum of the contributions of all ranks. A weight of 1/W makes it an average.
OCTAVO_RULE float sum_of(float own, float others, float weight) { return weight * (own + others); }

}  // namespace octavo::rules
