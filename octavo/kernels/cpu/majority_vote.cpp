// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

template <class V>
OCTAVO_INLINE float block_scale(V value, std::uint64_t first, std::uint64_t size) {
  std::uint32_t largest = 0;
  for_each_group(size, [&](std::uint64_t i, auto count) {
    value.prefetch(first + i);
    for (std::uint64_t j = 0; j < count; ++j) {
      const std::uint32_t bits = rules::magnitude_bits(value(first + i + j));
      largest = bits > largest ? bits : largest;
    }
  });
  return rules::vote_scale(largest);
}

template <class V>
OCTAVO_INLINE float encode_block(V value, std::uint64_t first, std::uint64_t size, std::uint8_t* codes,
                                 rules::Residual* next) {
  const float scale = block_scale(value, first, size);
  const bool finite = rules::is_finite(scale);
  std::uint8_t* positive = codes;
  std::uint8_t* cast = positive + rules::packed_sign_bytes(size);
  for_each_group(size, [&](std::uint64_t i, auto count) {
    float values[kGroup];
    std::uint32_t abstentions[kGroup];
    for (std::uint64_t j = 0; j < count; ++j) {
      values[j] = value(first + i + j);
      abstentions[j] = rules::magnitude_bits(values[j]) - 1;  // its highest bit is set for a zero alone
    }
    pack_signs(values, count, positive + i / 8);
    pack_signs(abstentions, count, cast + i / 8);
    if (!next) return;
    float left[kGroup];
    for (std::uint64_t j = 0; j < count; ++j) left[j] = finite ? values[j] - rules::vote(values[j]) : 0.0F;
    store_residual(Store::assign, value.in, first + i, left, count, next);
  });
  return scale;
}

}  // namespace

void encode_majority_vote(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                          rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      std::uint8_t* codes = payload.codes + 2 * index * rules::packed_sign_bytes(block);
      payload.scales[index] = encode_block(value, first, size, codes, next);
    });
  });
}

void decode_majority_vote(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out) {
  const Store how = choose_store(wish, count);
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    const std::uint8_t* cast = positive + rules::packed_sign_bytes(size);
    const float scale = payload.scales[index];
    for_each_group(size, [&](std::uint64_t i, auto group) {
      float signs[kGroup], are_cast[kGroup];
      expand_signs(load_signs(positive + i / 8, group), 1.0F, -1.0F, signs);
      expand_signs(load_signs(cast + i / 8, group), 1.0F, 0.0F, are_cast);
      for (std::uint64_t j = 0; j < kGroup; ++j) {
        signs[j] = rules::vote_decoded(signs[j] > 0, are_cast[j] > 0, scale);
      }
      store_part(how, signs, group, out + first + i);
    });
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
