// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/scaled_sign.h"

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"
#include "octavo/rules/sign_bits.h"

namespace octavo::reference {

namespace {

float chunk_sum(const EncodeInput& in, std::uint64_t first, std::uint64_t count) {
  return rules::lane_sum(count, [&](std::uint64_t i) { return rules::magnitude(value_at(in, first + i)); });
}

}  // namespace

void encode_scaled_sign(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                        rules::Residual* next) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    rules::CompensatedSum sum;
    for_each_block(size, rules::kSumChunk, [&](std::uint64_t, std::uint64_t chunk, std::uint64_t chunk_size) {
      sum.add(chunk_sum(in, first + chunk, chunk_size));
    });
    const float scale = rules::sign_scale(sum.value(), size);
    payload.scales[index] = scale;
    std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = value_at(in, first + i);
      if (i % 8 == 0) bits[i / 8] = 0;
      bits[i / 8] |= rules::place_sign_bit(rules::sign_bit(rules::to_bits(value)), i);
      const float left_over = rules::is_finite(scale) ? value - rules::sign_decoded(scale, value) : 0.0F;
      if (next) next[first + i] = residual_at(in, first + i, left_over);
    }
  });
}

void decode_scaled_sign(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
    const float scale = payload.scales[index];
    for (std::uint64_t i = 0; i < size; ++i) {
      store(how, rules::is_positive(bits[i / 8], i) ? scale : -scale, out[first + i]);
    }
  });
}

}  // namespace octavo::reference
