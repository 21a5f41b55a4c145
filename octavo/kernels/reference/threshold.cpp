// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/threshold.h"

#include <algorithm>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void count_large(Queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts) {
  for (std::uint64_t first = 0; first < count; first += rules::kCountChunk) {
    const float* const chunk = values + first;
    *counts++ =
        static_cast<std::uint32_t>(std::count_if(chunk, chunk + std::min(rules::kCountChunk, count - first),
                                                 [&](float value) { return rules::magnitude_bits(value) >= least; }));
  }
}

}  // namespace octavo::reference
