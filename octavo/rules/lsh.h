// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/count_sketch.h"
#include "octavo/rules/portable.h"

/// Whether values have hardly changed, by locality-sensitive hashing: a SimHash (Charikar 2002) is the signs of random
/// projections, and of two vectors at an angle the share of the signs that differ is about angle / pi.
///
/// A projection here takes in only the elements that one cell of a count sketch does, each of them with a random sign,
/// so that all projections of a tile cost one addition for each element and no matrix is stored. A sketch is linear: of
/// what values were and of their change it gives the hash of what they are.
///
/// Signs say nothing of sizes, and a cell that a single large value fills says little of that value. But the squares of
/// the cells add up to about those of the elements, and so the same cells tell how large the change is.
namespace octavo::rules {

inline constexpr std::uint64_t kLshTile = 1U << 14;  // elements that are compared, and sent or not, together
inline constexpr std::uint64_t kLshBits = 256;       // of the hash of a tile

OCTAVO_RULE constexpr CountSketch lsh_sketch(std::uint64_t key) { return {key, 1, kLshBits}; }

/// How far values may move without being sent.
struct LshLimit {
  double bits;    // the share of the hash that may differ
  double change;  // the square of the change, relative to that of the new values
};

/// `estimate`, `difference`: the cells of the sketches of what the values were, and of what they have moved by. Bits of
/// projections that are 0 before and after do not count. A NaN is a change.
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
