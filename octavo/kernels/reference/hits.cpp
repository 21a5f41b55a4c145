// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/hits.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void add_hits(Queue, const float* values, std::uint64_t count, Store how, float* sum, float* hits) {
  for (std::uint64_t i = 0; i < count; ++i) {
    store(how, values[i], sum[i]);
    store(how, rules::is_hit(values[i]) ? 1.0F : 0.0F, hits[i]);
  }
}

void divide_by_hits(Queue, const float* hits, float weight, std::uint64_t count, float* sum) {
  for (std::uint64_t i = 0; i < count; ++i) sum[i] = rules::mean_over_hits(sum[i], hits[i], weight);
}

}  // namespace octavo::reference
