// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// Momentum before compression, after Deep Gradient Compression (Lin et al. 2018). The order of the operations is part
/// of the rule, and none is a fused multiply-add.
namespace octavo::rules {

/// Returns the velocity (momentum correction). Each rank sends its velocity in place of its gradient.
OCTAVO_RULE float velocity(float momentum, float before, float contribution) {
  return momentum * before + contribution;
}

/// Returns the velocity after sending (momentum factor masking). The velocity of a value that was sent becomes 0, so
/// that it does not continue in a direction that is old by the time it is sent again.
OCTAVO_RULE float masked_velocity(float velocity, float sent) { return sent == 0.0F ? velocity : 0.0F; }

}  // namespace octavo::rules
