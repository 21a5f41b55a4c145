// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/damped_feedback.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void add_owed(Queue, const EncodeInput& in, float part, const float* owed, const float* estimate, std::uint64_t count,
              float* values) {
  float own[kSpan];
  for_each_block(count, kSpan, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    work_out(in, first, size, own);
    const float *const of_owed = floats_from(owed, first), *const of_estimate = floats_from(estimate, first);
    for (std::uint64_t i = 0; i < size; ++i) {
      values[first + i] = rules::damped_value(own[i], part, of_owed[i], of_estimate[i]);
    }
  });
}

void keep_owed(Queue, const EncodeInput& in, const float* owed, const float* received, std::uint64_t count,
               float* next) {
  float own[kSpan];
  for_each_block(count, kSpan, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    work_out(in, first, size, own);
    const float* const of_owed = floats_from(owed, first);
    for (std::uint64_t i = 0; i < size; ++i) {
      next[first + i] = rules::owed_after(own[i], of_owed[i], received[first + i]);
    }
  });
}

}  // namespace octavo::cpu::OCTAVO_ISA
