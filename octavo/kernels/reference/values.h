// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/operands.h"

/// What the reference codecs share: the walk over blocks.
namespace octavo::reference {

/// Calls visit(block_index, first, count) for every block.
template <class Visit>
void for_each_block(std::uint64_t count, std::uint64_t block, Visit visit) {
  for (std::uint64_t first = 0, index = 0; first < count; first += block, ++index) {
    visit(index, first, std::min(block, count - first));
  }
}

}  // namespace octavo::reference
