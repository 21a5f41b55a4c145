// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/scaled_sign.h"

#include "octavo/kernels/cpu/lane_sum.h"
#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// values[i] = the value at first + i; zeros up to the end of the last group.
template <class V>
OCTAVO_INLINE void work_out(V value, std::uint64_t first, std::uint64_t count, float* values) {
  for_each_group(count, [&](std::uint64_t i, auto size) {
    value.prefetch(first + i);
    for (std::uint64_t j = 0; j < size; ++j) values[i + j] = value(first + i + j);
    for (std::uint64_t j = size; j < kGroup; ++j) values[i + j] = 0.0F;
  });
}

/// Packs the signs of a chunk, the values of `in` from element `first` on, and keeps what they and the scale leave over
/// where `next` is not null.
OCTAVO_INLINE void encode_chunk(const EncodeInput& in, std::uint64_t first, const float* values, std::uint64_t count,
                                float scale, std::uint8_t* bits, rules::Residual* next, Store how) {
  for_each_group(count, [&](std::uint64_t i, auto size) {
    pack_signs(values + i, size, bits + i / 8);
    if (!next) return;
    float left_over[kGroup];
    for (std::uint64_t j = 0; j < kGroup; ++j) {
      left_over[j] = values[i + j] - rules::sign_decoded(scale, values[i + j]);
    }
    store_residual(how, in, first + i, left_over, size, next);
  });
}

/// Returns the scale. A block of one chunk is worked out once, a larger one again for its signs: up to 2^18 elements
/// are still in L2 then.
template <class V>
OCTAVO_INLINE float encode_block(V value, std::uint64_t first, std::uint64_t size, std::uint8_t* bits,
                                 rules::Residual* next, Store how) {
  alignas(64) float values[rules::kSumChunk];
  rules::CompensatedSum sum;
  for_each_block(size, rules::kSumChunk, [&](std::uint64_t, std::uint64_t chunk, std::uint64_t count) {
    work_out(value, first + chunk, count, values);
    sum.add(lane_sum(values, count, magnitudes));
  });
  const float scale = rules::sign_scale(sum.value(), size);
  if (next && !rules::is_finite(scale)) {
    std::memset(next + first, 0, size * sizeof *next);
    next = nullptr;
  }
  for_each_block(size, rules::kSumChunk, [&](std::uint64_t, std::uint64_t chunk, std::uint64_t count) {
    if (size > rules::kSumChunk) work_out(value, first + chunk, count, values);
    encode_chunk(value.in, first + chunk, values, count, scale, bits + chunk / 8, next, how);
  });
  return scale;
}

}  // namespace

void encode_scaled_sign(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                        rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      payload.scales[index] = encode_block(value, first, size, payload.codes + index * rules::packed_sign_bytes(block),
                                           next, choose_residual_store(count));
    });
  });
  end_stream();
}

void decode_scaled_sign(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out) {
  const Store how = choose_store(wish, count);
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
    const float scale = payload.scales[index];
    for_each_group(size, [&](std::uint64_t i, auto group) {
      float values[kGroup];
      expand_signs(load_signs(bits + i / 8, group), scale, -scale, values);
      store_part(how, values, group, out + first + i);
    });
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
