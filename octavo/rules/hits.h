// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

/// The average over hits, for codecs that leave most values unsent. Each sum is divided by the number of ranks that
/// sent a value there, and not by the number of all ranks (DeMo: Peng et al. 2024; SparseLoCo: Sarfi et al. 2025). The
/// order of the operations is part of the rule.
namespace octavo::rules {

/// Whether a decoded value means that its rank sent a value.
OCTAVO_RULE bool is_hit(float decoded) { return decoded != 0; }

/// Returns the mean over hits, times `weight`, which is 1 for the mean itself. Where all ranks hit, the bits are those
/// of the mean over ranks.
OCTAVO_RULE float mean_over_hits(float sum, float hits, float weight) {
  return sum * (weight / (hits > 1 ? hits : 1.0F));
}

}  // namespace octavo::rules
