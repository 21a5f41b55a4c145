// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/table.h"
#include "octavo/rules/contribution.h"

/// What the reference codecs share: the value at an index, and the walk over blocks.
namespace octavo::reference {

inline float value_at(const EncodeInput& in, std::uint64_t i) {
  float value = in.momentum ? rules::contribution(in.gradient_weight, in.gradient[i], in.preconditioner[i],
                                                  in.momentum_weight, in.momentum[i])
                            : rules::contribution(in.gradient_weight, in.gradient[i]);
  if (in.others) value = rules::sum_of(value, in.others[i], in.sum_weight);
  return in.residual ? value + rules::from_residual(in.residual[i]) : value;
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
