// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// Compressed differences: sender and receivers keep the same estimate of a value, and its difference to the value is
/// what is encoded. EF21 (Richtarik et al. 2021) for codecs that leave an error; DIANA (Mishchenko et al. 2019) for
/// unbiased ones, whose difference is learnt in part. Sender and receivers form the same sums, so that their estimates
/// keep the same bits.
namespace octavo::rules {

/// What is encoded.
OCTAVO_RULE float difference(float value, float estimate) { return value - estimate; }

/// What receivers take for the value.
OCTAVO_RULE float received_value(float estimate, float sent) { return estimate + sent; }

/// What is remembered of it. `share`: 1 for EF21.
OCTAVO_RULE float next_estimate(float estimate, float sent, float share) { return estimate + share * sent; }

}  // namespace octavo::rules
