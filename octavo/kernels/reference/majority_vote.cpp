// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/majority_vote.h"

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"
#include "octavo/rules/sign_bits.h"

namespace octavo::reference {

namespace {

/// 1, or NaN where any value of the block is not finite: the only thing that a vote's scale says.
float validity(const EncodeInput& in, std::uint64_t first, std::uint64_t size) {
  for (std::uint64_t i = 0; i < size; ++i) {
    if (!rules::is_finite(value_at(in, first + i))) return rules::from_bits(rules::kQuietNaNBits);
  }
  return 1.0F;
}

void set_bit(std::uint8_t* bits, std::uint64_t i, bool bit) {
  if (i % 8 == 0) bits[i / 8] = 0;
  bits[i / 8] |= rules::place_sign_bit(bit ? 1 : 0, i);
}

void encode_ballot(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const float scale = validity(in, first, size);
    payload.scales[index] = scale;
    std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = value_at(in, first + i);
      set_bit(bits, i, rules::sign_bit(rules::to_bits(value)) != 0);
      const float left_over = rules::is_finite(scale) ? value - rules::vote(value) : 0.0F;
      if (next) next[first + i] = rules::to_residual(left_over);
    }
  });
}

/// The outcome takes two bits an element: the signs of a block, then which of its elements are decided.
void encode_outcome(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                    rules::Residual* next) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const float scale = validity(in, first, size);
    payload.scales[index] = scale;
    std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    std::uint8_t* decided = positive + rules::packed_sign_bytes(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = value_at(in, first + i);
      set_bit(positive, i, value > 0);
      set_bit(decided, i, value != 0);
      const float left_over = rules::is_finite(scale) ? value - rules::vote_outcome(value > 0, value != 0) : 0.0F;
      if (next) next[first + i] = rules::to_residual(left_over);
    }
  });
}

void decode_outcome(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* positive = payload.codes + 2 * index * rules::packed_sign_bytes(block);
    const std::uint8_t* decided = positive + rules::packed_sign_bytes(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float outcome =
          rules::vote_outcome(rules::is_positive(positive[i / 8], i), rules::is_positive(decided[i / 8], i));
      store(how, outcome * payload.scales[index], out[first + i]);
    }
  });
}

}  // namespace

const CodecKernels ballot = {encode_ballot, scaled_sign.decode};
const CodecKernels majority_vote = {encode_outcome, decode_outcome};

}  // namespace octavo::reference
