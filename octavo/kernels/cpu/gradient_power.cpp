// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/gradient_power.h"

#include "octavo/kernels/cpu/lane_sum.h"
#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// Returns the rules::chunk_power of a chunk. `count`: of whole groups.
OCTAVO_INLINE float power_of(const float* values, std::uint64_t count) {
  std::uint32_t seen = 0;
  for (std::uint64_t i = 0; i < count; ++i) seen |= rules::magnitude_bits(values[i]);
  return rules::chunk_power(lane_sum(values, count, [](FloatVector vector) { return vector * vector; }), seen);
}

/// Prefetches a chunk. No hardware foresees it, because the strides are longer than a page.
OCTAVO_INLINE void prefetch_chunk(const float* values) {
  constexpr std::uint64_t kCacheLine = kCacheLineBytes / sizeof(float);
  for (std::uint64_t i = 0; i < rules::kPowerChunk; i += kCacheLine) __builtin_prefetch(values + i);
}

}  // namespace

void chunk_powers(Queue, const float* values, std::uint64_t count, std::uint64_t stride, float* powers) {
  for (std::uint64_t first = 0; first < count; first += stride) {
    prefetch_chunk(values + first + stride);
    const std::uint64_t size = smaller(rules::kPowerChunk, count - first);
    if (size == rules::kPowerChunk) {
      *powers++ = power_of(values + first, rules::kPowerChunk);
      continue;
    }
    float padded[rules::kPowerChunk] = {};
    std::memcpy(padded, values + first, size * sizeof *values);
    *powers++ = power_of(padded, rules::kPowerChunk);
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
