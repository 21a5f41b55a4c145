// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

template <class V>
OCTAVO_INLINE float validity(V value, std::uint64_t first, std::uint64_t size) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    const std::uint32_t bits = rules::magnitude_bits(value(first + i));
    largest = bits > largest ? bits : largest;
  }
  return largest < rules::kInfinityBits ? 1.0F : rules::from_bits(rules::kQuietNaNBits);
}

void encode_ballot(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      const float scale = validity(value, first, size);
      payload.scales[index] = scale;
      std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
      for_each_group(size, [&](std::uint64_t i, auto group) {
        float values[kGroup], left[kGroup];
        for (std::uint64_t j = 0; j < group; ++j) {
          values[j] = value(first + i + j);
          left[j] = rules::is_finite(scale) ? values[j] - rules::vote(values[j]) : 0.0F;
        }
        if (next) store_residual(Store::assign, left, group, next + first + i);
        pack_signs(values, group, bits + i / 8);
      });
    });
  });
}

void encode_outcome(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                    rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      const float scale = validity(value, first, size);
      payload.scales[index] = scale;
      std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
      std::uint8_t* decided = positive + rules::packed_sign_bytes(size);
      for_each_group(size, [&](std::uint64_t i, auto group) {
        float positive_signs[kGroup], decided_signs[kGroup], left[kGroup];
        for (std::uint64_t j = 0; j < group; ++j) {
          const float v = value(first + i + j);
          positive_signs[j] = v > 0 ? 1.0F : -1.0F;
          decided_signs[j] = v != 0 ? 1.0F : -1.0F;
          left[j] = rules::is_finite(scale) ? v - rules::vote_outcome(v > 0, v != 0) : 0.0F;
        }
        if (next) store_residual(Store::assign, left, group, next + first + i);
        pack_signs(positive_signs, group, positive + i / 8);
        pack_signs(decided_signs, group, decided + i / 8);
      });
    });
  });
}

void decode_outcome(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out) {
  const Store how = wish == Store::uncached ? Store::assign : wish;
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    const std::uint8_t* decided = positive + rules::packed_sign_bytes(size);
    const float scale = payload.scales[index];
    for_each_group(size, [&](std::uint64_t i, auto group) {
      float signs[kGroup], weights[kGroup];
      expand_signs(load_signs(positive + i / 8, group), 1.0F, -1.0F, signs);
      expand_signs(load_signs(decided + i / 8, group), 1.0F, 0.0F, weights);
      // a tie is +0, never -0
      for (std::uint64_t j = 0; j < group; ++j) signs[j] = (weights[j] != 0 ? signs[j] : 0.0F) * scale;
      store(how, signs, group, out + first + i);
    });
  });
}

}  // namespace

const CodecKernels ballot = {encode_ballot, scaled_sign.decode};
const CodecKernels majority_vote = {encode_outcome, decode_outcome};

}  // namespace octavo::cpu::OCTAVO_ISA
