// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/int4.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

template <class V>
OCTAVO_INLINE rules::Int4Scale block_scale(V value, std::uint64_t first, std::uint64_t size) {
  std::uint32_t largest = 0;
  for_each_group(size, [&](std::uint64_t i, auto count) {
    value.prefetch(first + i);
    for (std::uint64_t j = 0; j < count; ++j) {
      const std::uint32_t bits = rules::magnitude_bits(value(first + i + j));
      largest = bits > largest ? bits : largest;
    }
  });
  return rules::int4_scale(largest);
}

/// nibbles[i] holds code + 8 in a 32-bit word.
OCTAVO_INLINE void pack_nibbles(const std::int32_t* nibbles, std::uint64_t count, std::uint8_t* codes) {
  for (std::uint64_t j = 0; j < count / 2; ++j) {
    codes[j] = static_cast<std::uint8_t>(nibbles[2 * j] << 4 | nibbles[2 * j + 1]);
  }
  if (count % 2) codes[count / 2] = static_cast<std::uint8_t>(nibbles[count - 1] << 4);
}

/// left[j] = what code and scale leave over of the value.
template <class V>
OCTAVO_INLINE void encode_group(V value, std::uint64_t first, std::uint64_t count, rules::Int4Scale s,
                                std::int32_t* nibbles, float* left) {
  const bool finite = rules::is_finite(s.scale);
  for (std::uint64_t j = 0; j < count; ++j) {
    const float v = value(first + j);
    const float code = finite ? rules::int4_code(v, s.reciprocal) : 0.0F;
    nibbles[j] = static_cast<std::int32_t>(code) + 8;
    left[j] = finite ? v - rules::int4_decoded(code, s.scale) : 0.0F;
  }
}

OCTAVO_INLINE void unpack_codes(const std::uint8_t* codes, std::uint64_t count, float scale, float* values) {
  for (std::uint64_t j = 0; j < count / 2; ++j) {
    values[2 * j] = rules::int4_decoded(static_cast<float>((codes[j] >> 4) - 8), scale);
    values[2 * j + 1] = rules::int4_decoded(static_cast<float>((codes[j] & 15) - 8), scale);
  }
  if (count % 2) values[count - 1] = rules::int4_decoded(static_cast<float>((codes[count / 2] >> 4) - 8), scale);
}

template <class V>
OCTAVO_INLINE void encode_block(V value, std::uint64_t first, std::uint64_t size, std::uint8_t* codes, float* scale,
                                rules::Residual* next, Store how) {
  const rules::Int4Scale s = block_scale(value, first, size);
  *scale = s.scale;
  for_each_group(size, [&](std::uint64_t i, auto count) {
    std::int32_t nibbles[kGroup];
    float left[kGroup];
    encode_group(value, first + i, count, s, nibbles, left);
    pack_nibbles(nibbles, count, codes + i / 2);
    if (next) store_residual(how, value.in, first + i, left, count, next);
  });
}

}  // namespace

void encode_int4(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                 rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      encode_block(value, first, size, payload.codes + index * rules::packed_int4_bytes(block), payload.scales + index,
                   next, choose_residual_store(count));
    });
  });
  end_stream();
}

void decode_int4(Queue, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out) {
  const Store how = choose_store(wish, count);
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* codes = payload.codes + index * rules::packed_int4_bytes(block);
    for_each_group(size, [&](std::uint64_t i, auto group) {
      float values[kGroup];
      unpack_codes(codes + i / 2, group, payload.scales[index], values);
      store_part(how, values, group, out + first + i);
    });
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
