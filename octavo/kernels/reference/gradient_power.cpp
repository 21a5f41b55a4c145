// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/gradient_power.h"

#include <algorithm>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void chunk_powers(Queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers) {
  for (std::uint64_t first = 0; first < count; first += stride) {
    const std::uint64_t size = std::min(rules::kPowerChunk, count - first);
    const float sum = rules::lane_sum(size, [&](std::uint64_t i) { return values[first + i] * values[first + i]; });
    std::uint32_t seen = 0;
    for (std::uint64_t i = 0; i < size; ++i) seen |= rules::magnitude_bits(values[first + i]);
    *powers++ = rules::chunk_power(sum, seen);
  }
}

}  // namespace octavo::reference
