// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// Compressed differences: sender and receivers keep the same estimate of a value, and the value less its estimate is
/// encoded. This is EF21 (Richtarik et al. 2021) for codecs that leave an error, and DIANA (Mishchenko et al. 2019) for
/// unbiased codecs, where the estimate takes over only a share of the difference. Sender and receivers form the same
/// sums, so that their estimates keep the same bits.
namespace octavo::rules {

/// Returns what is encoded.
OCTAVO_RULE float difference(float value, float estimate) { return value - estimate; }

/// Returns what receivers take for the value.
OCTAVO_RULE float received_value(float estimate, float sent) { return estimate + sent; }

/// Returns the estimate that is remembered for the next step. `share`: 1 for EF21.
OCTAVO_RULE float next_estimate(float estimate, float sent, float share) { return estimate + share * sent; }

}  // namespace octavo::rules
