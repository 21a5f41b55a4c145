// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/table.h"
#include "octavo/rules/compensate.h"

/// What the reference codecs share: the value at an index, and the walk over blocks.
namespace octavo::reference {

inline float value_at(const EncodeInput& in, std::uint64_t i) {
  return rules::compensate(in.gradient_weight, in.gradient[i], in.momentum ? in.preconditioner[i] : 1.0F,
                           in.momentum_weight, in.momentum ? in.momentum[i] : 0.0F,
                           in.residual ? rules::from_residual(in.residual[i]) : 0.0F);
}

/// Calls visit(block_index, first, count) for every block.
template <class Visit>
void for_each_block(std::uint64_t count, std::uint64_t block, Visit visit) {
  for (std::uint64_t first = 0, index = 0; first < count; first += block, ++index) {
    visit(index, first, std::min(block, count - first));
  }
}

inline void store(Store how, float value, float& out) { out = how == Store::add ? out + value : value; }

}  // namespace octavo::reference
