// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/residual.h"

/// Error feedback that adds a part of what is owed, and so pays it back over several steps: all at once it disturbs an
/// optimizer, or, with codecs that leave out most, never settles. EControl (Gao, Islamov and Stich 2024) does it beside
/// the estimates of EF21; LoCo (Xie et al. 2025) alone. The order of the operations is part of the rule.
namespace octavo::rules {

/// What is encoded: what is not in the receivers' estimate yet, of the value and a part of what is owed.
OCTAVO_RULE float damped_value(float value, float part, float owed, float estimate) {
  return (value + part * owed) - estimate;
}

/// What is owed then, where receivers took `received` for the value; nothing where that is not a number.
OCTAVO_RULE float owed_after(float value, float owed, float received) { return left_over_of(value + owed, received); }

}  // namespace octavo::rules
