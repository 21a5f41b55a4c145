// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/int4.h"

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"

namespace octavo::reference {

void encode_int4(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                 rules::Residual* next) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    std::uint32_t largest = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      largest = std::max(largest, rules::magnitude_bits(value_at(in, first + i)));
    }
    const rules::Int4Scale s = rules::int4_scale(largest);
    payload.scales[index] = s.scale;
    std::uint8_t* codes = payload.codes + index * rules::packed_int4_bytes(block);
    for (std::uint64_t i = 0; i < size; ++i) {
      const float value = value_at(in, first + i);
      const bool finite = rules::is_finite(s.scale);
      const float code = finite ? rules::int4_code(value, s.reciprocal) : 0.0F;
      const auto nibble = static_cast<unsigned>(static_cast<int>(code) + 8);
      codes[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? nibble << 4 : codes[i / 2] | nibble);
      const float left_over = finite ? value - rules::int4_decoded(code, s.scale) : 0.0F;
      if (next) next[first + i] = residual_at(in, first + i, left_over);
    }
  });
}

void decode_int4(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* codes = payload.codes + index * rules::packed_int4_bytes(block);
    for (std::uint64_t i = 0; i < size; ++i) {
      const int nibble = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      store(how, rules::int4_decoded(static_cast<float>(nibble - 8), payload.scales[index]), out[first + i]);
    }
  });
}

}  // namespace octavo::reference
