// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/ef21.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void subtract_estimate(Queue, const EncodeInput& in, const float* estimate, std::uint64_t count, float* difference) {
  for (std::uint64_t i = 0; i < count; ++i) {
    difference[i] = rules::difference(value_at(in, i), estimate ? estimate[i] : 0.0F);
  }
}

void add_to_estimate(Queue, const float* sent, const float* estimate, std::uint64_t count, float share, Store how,
                     float* out, float* next, std::uint32_t* nonfinite) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float before = estimate ? estimate[i] : 0.0F, value = rules::received_value(before, sent[i]);
    report(rules::is_finite(value), nonfinite);
    if (next) next[i] = rules::next_estimate(before, sent[i], share);
    if (out) store(how, value, out[i]);
  }
}

}  // namespace octavo::reference
