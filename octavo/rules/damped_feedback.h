// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/residual.h"

/// Error feedback that adds only a part of what is owed in each step, and so pays it back over several steps. Paid back
/// all at once, it disturbs an optimizer or, with codecs that leave out most values, never settles. EControl (Gao,
/// Islamov and Stich 2024) does this in addition to the estimates of EF21, and LoCo (Xie et al. 2025) without them. The
/// order of the operations is part of the rule.
namespace octavo::rules {

/// Returns what is encoded: the value plus a part of what is owed, less the receivers' estimate.
OCTAVO_RULE float damped_value(float value, float part, float owed, float estimate) {
  return (value + part * owed) - estimate;
}

/// Returns what is owed after receivers have taken `received` for the value: at most 2^125 in magnitude, which a block
/// of codes may have as its largest value (is_sendable()); 0 where the difference is not a finite number.
OCTAVO_RULE float owed_after(float value, float owed, float received) {
  constexpr float kMost = 0x1p125F;
  const float rest = left_over_of(value + owed, received);
  return chosen(rest > kMost, kMost, chosen(rest < -kMost, -kMost, rest));
}

}  // namespace octavo::rules
