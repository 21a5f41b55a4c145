// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/count_sketch.h"
#include "octavo/rules/portable.h"

/// Locality-sensitive hashing tells whether values have hardly changed. A SimHash (Charikar 2002) is the signs of
/// random projections. For two vectors at an angle, the share of the signs that differ is about angle / pi.
///
/// A projection here is a cell of a count sketch: it adds only the elements that belong to the cell, each with a random
/// sign. All projections of a tile therefore cost one addition per element, and no matrix is stored. A sketch is
/// linear: the sketches of the old values and of their change together give the hash of the new values.
///
/// Signs say nothing about sizes, and a cell that a single large value fills says little about that value. But the
/// squares of the cells add up to about those of the elements, so the same cells also tell how large the change is.
namespace octavo::rules {

inline constexpr std::uint64_t kLshTile = 1U << 14;  // elements that are compared, and sent or not, together
inline constexpr std::uint64_t kLshBits = 256;       // bits of the hash of a tile

OCTAVO_RULE constexpr CountSketch lsh_sketch(std::uint64_t key) { return {key, 1, kLshBits}; }

/// How far values may move without being sent.
struct LshLimit {
  double bits;    // the share of the hash that may differ
  double change;  // the square of the change, relative to that of the new values
};

/// Whether values have changed by no more than the limit. `estimate`, `difference`: the cells of the sketches of the
/// old values and of their change. Bits of projections that are 0 before and after do not count. A NaN counts as a
/// change.
OCTAVO_RULE bool has_hardly_changed(const float* estimate, const float* difference, LshLimit limit) {
  std::uint64_t bits = 0, differing = 0;
  double energy = 0, change = 0;
  for (std::uint64_t i = 0; i < kLshBits; ++i) {
    const double before = estimate[i], moved = difference[i], now = before + moved;
    if (before == 0 && now == 0) continue;
    ++bits;
    differing += (before < 0) != (now < 0) ? 1 : 0;
    energy += now * now;
    change += moved * moved;
  }
  const double allowed = limit.bits * static_cast<double>(bits);
  return static_cast<double>(differing) <= allowed && change <= limit.change * energy;
}

}  // namespace octavo::rules
