// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/damped_feedback.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void add_owed(Queue, const EncodeInput& in, float part, const float* owed, const float* estimate, std::uint64_t count,
              float* values) {
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = rules::damped_value(value_at(in, i), part, owed ? owed[i] : 0.0F, estimate ? estimate[i] : 0.0F);
  }
}

void keep_owed(Queue, const EncodeInput& in, const float* owed, const float* received, std::uint64_t count,
               float* next) {
  for (std::uint64_t i = 0; i < count; ++i) {
    next[i] = rules::owed_after(value_at(in, i), owed ? owed[i] : 0.0F, received[i]);
  }
}

}  // namespace octavo::reference
