// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/random_k.h"

#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

constexpr std::uint64_t kChunk = 1024;

}  // namespace

void select_random(Queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape, float* values) {
  for (std::uint64_t j = 0, kept = shape.kept_in(count); j < kept; ++j) {
    values[j] = value_at(in, shape.index(j, count)) * shape.weight(j, count);
  }
  float chunk[kChunk];
  for_each_block(count, kChunk, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    work_out(in, first, size, chunk);
    const std::uint32_t largest = largest_magnitude(chunk, size);
    for (std::uint64_t i = 0; largest >= rules::kInfinityBits && i < size; ++i) {
      if (!rules::is_finite(chunk[i])) values[(first + i) / shape.stride] = rules::from_bits(rules::kQuietNaNBits);
    }
  });
}

void settle_random(Queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape, const float* sent,
                   rules::Residual* next) {
  const Store how = choose_residual_store(count);
  const std::uint64_t kept = shape.kept_in(count);
  std::uint64_t j = 0;
  float values[kChunk];
  for_each_block(count, kChunk, [&](std::uint64_t, std::uint64_t first, std::uint64_t size) {
    work_out(in, first, size, values);
    for (; j < kept && shape.index(j, count) < first + size; ++j) {
      float& value = values[shape.index(j, count) - first];
      value = rules::left_over_of(value, sent[j]);
    }
    keep_residual({next, how}, in, first, values, size);
  });
  end_stream();
}

void scatter_random(Queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store wish, float* out,
                    std::uint32_t* nonfinite) {
  const bool all_finite = scatter(choose_store(wish, count), count, out, [&](auto put) {
    for (std::uint64_t j = 0, kept = shape.kept_in(count); j < kept; ++j) put(shape.index(j, count), sent[j]);
  });
  report(all_finite, nonfinite);
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
