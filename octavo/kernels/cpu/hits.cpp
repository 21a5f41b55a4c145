// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/hits.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void add_hits(Queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits) {
  store(how, values, count, sum);
  if (how == Store::add) {
    for (std::uint64_t i = 0; i < count; ++i) hits[i] += rules::is_hit(values[i]) ? 1.0F : 0.0F;
  } else {
    for (std::uint64_t i = 0; i < count; ++i) hits[i] = rules::is_hit(values[i]) ? 1.0F : 0.0F;
  }
}

void divide_by_hits(Queue, const float* hits, float weight, std::uint64_t count, float* sum) {
  for (std::uint64_t i = 0; i < count; ++i) sum[i] = rules::mean_over_hits(sum[i], hits[i], weight);
}

}  // namespace octavo::cpu::OCTAVO_ISA
