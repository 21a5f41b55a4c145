// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/rules/portable.h"

namespace octavo::rules {

/// A sum of floats, in the order in which they are added, that keeps what each addition rounds off (TwoSum: Knuth, The
/// Art of Computer Programming, volume 2, 4.2.2). It is as exact as a sum in double, for devices without fp64. Every
/// back end gets the same bits.
struct CompensatedSum {
  float sum = 0;
  float rounded_off = 0;

  OCTAVO_RULE void add(float term) {
    const float total = sum + term;
    const float added = total - sum;
    rounded_off += (sum - (total - added)) + (term - added);
    sum = total;
  }

  /// Returns the sum: a NaN where a term was infinite or a NaN, or where the sum overflows.
  OCTAVO_RULE float value() const { return sum + rounded_off; }
};

}  // namespace octavo::rules
