// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"
#include "octavo/rules/sign_bits.h"

namespace octavo::reference {

namespace {

void set_bit(std::uint8_t* bits, std::uint64_t i, bool bit) {
  if (i % 8 == 0) bits[i / 8] = 0;
  bits[i / 8] |= rules::place_sign_bit(bit ? 1 : 0, i);
}

}  // namespace

void encode_majority_vote(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                          rules::Residual* next) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    std::uint32_t largest = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      largest = std::max(largest, rules::magnitude_bits(value_at(in, first + i)));
    }
    const float scale = rules::vote_scale(largest);
    payload.scales[index] = scale;
    std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    std::uint8_t* cast = positive + rules::packed_sign_bytes(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = value_at(in, first + i);
      set_bit(positive, i, rules::sign_bit(rules::to_bits(value)) != 0);
      set_bit(cast, i, rules::casts_vote(value));
      const float left_over = rules::is_finite(scale) ? value - rules::vote(value) : 0.0F;
      if (next) next[first + i] = residual_at(in, first + i, left_over);
    }
  });
}

void decode_majority_vote(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    const std::uint8_t* cast = positive + rules::packed_sign_bytes(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float vote = rules::vote_decoded(rules::is_positive(positive[i / 8], i), rules::is_positive(cast[i / 8], i),
                                             payload.scales[index]);
      store(how, vote, out[first + i]);
    }
  });
}

}  // namespace octavo::reference
