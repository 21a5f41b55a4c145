// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/threshold.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void count_large(Queue, const float* values, std::uint64_t count, std::uint32_t least, std::uint32_t* counts) {
  for_each_block(count, rules::kCountChunk, [&](std::uint64_t chunk, std::uint64_t first, std::uint64_t size) {
    std::uint32_t found = 0;
    for (std::uint64_t i = first; i < first + size; ++i) found += rules::magnitude_bits(values[i]) >= least ? 1U : 0U;
    counts[chunk] = found;
  });
}

}  // namespace octavo::cpu::OCTAVO_ISA
