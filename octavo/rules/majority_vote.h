// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/float_bits.h"

/// Majority vote (signSGD with majority vote, Bernstein et al. 2018). Each rank votes by its sign bit; the outcome is
/// +1, -1, or 0 for a tie: mapping a tie to +1 would push every undecided parameter the same way.
namespace octavo::rules {

OCTAVO_RULE float vote(float value) { return with_sign_of(1.0F, value); }

OCTAVO_RULE float vote_outcome(bool positive, bool decided) { return decided ? (positive ? 1.0F : -1.0F) : 0.0F; }

}  // namespace octavo::rules
