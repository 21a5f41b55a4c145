// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/ef21.h"

#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void subtract_estimate(Queue, const EncodeInput& in, const float* estimate, std::uint64_t count, float* difference) {
  float values[kSpan];
  for_each_block(count, kSpan, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    work_out(in, first, size, values);
    const float* const before = floats_from(estimate, first);
    for (std::uint64_t i = 0; i < size; ++i) difference[first + i] = rules::difference(values[i], before[i]);
  });
}

void add_to_estimate(Queue, const float* sent, const float* estimate, std::uint64_t count, float share, Store how,
                     float* out, float* next, std::uint32_t* nonfinite) {
  float values[kSpan];
  std::uint32_t largest = 0;
  for_each_block(count, kSpan, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    const float* const before = floats_from(estimate, first);
    for (std::uint64_t i = 0; i < size; ++i) {
      values[i] = rules::received_value(before[i], sent[first + i]);
      const std::uint32_t bits = rules::magnitude_bits(values[i]);
      largest = bits > largest ? bits : largest;
    }
    for (std::uint64_t i = 0; next && i < size; ++i) {
      next[first + i] = rules::next_estimate(before[i], sent[first + i], share);
    }
    if (out) store(how, values, size, out + first);
  });
  report(largest < rules::kInfinityBits, nonfinite);
}

}  // namespace octavo::cpu::OCTAVO_ISA
