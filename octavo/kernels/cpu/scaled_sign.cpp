// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/scaled_sign.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

static_assert(kGroup == rules::kSumLanes);

template <class V>
OCTAVO_INLINE float chunk_sum(V value, std::uint64_t first, std::uint64_t count) {
  float lanes[kGroup] = {};
  const std::uint64_t whole = count - count % kGroup;
  for (std::uint64_t i = 0; i < whole; i += kGroup) {
    value.prefetch(first + i);
    for (std::uint64_t lane = 0; lane < kGroup; ++lane) lanes[lane] += rules::magnitude(value(first + i + lane));
  }
  for (std::uint64_t i = whole; i < count; ++i) lanes[i - whole] += rules::magnitude(value(first + i));
  for (std::uint64_t half = kGroup / 2; half > 0; half /= 2) {
    for (std::uint64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <class V>
OCTAVO_INLINE float block_scale(V value, std::uint64_t first, std::uint64_t size) {
  double sum = 0;
  for_each_block(size, rules::kSumChunk, [&](std::uint64_t, std::uint64_t chunk, std::uint64_t chunk_size) {
    sum += static_cast<double>(chunk_sum(value, first + chunk, chunk_size));
  });
  return rules::sign_scale(sum, size);
}

/// left[i] = what the sign and the scale leave over of values[i].
OCTAVO_INLINE void leave_over(const float* values, std::uint64_t count, float scale, bool finite, float* left) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float difference = values[i] - rules::sign_decoded(scale, values[i]);
    left[i] = finite ? difference : 0.0F;
  }
}

/// The second pass over a block: signs, and what the scale leaves over. A block of up to 2^18 elements is still in L2.
template <class V>
OCTAVO_INLINE void encode_signs(V value, std::uint64_t first, std::uint64_t size, float scale, std::uint8_t* bits,
                                float* next, Store how) {
  const bool finite = rules::is_finite(scale);
  float values[kGroup], left[kGroup];
  for (std::uint64_t i = 0; i < size; i += kGroup) {
    const std::uint64_t count = smaller(kGroup, size - i);
    if (count == kGroup) {
      for (std::uint64_t j = 0; j < kGroup; ++j) values[j] = value(first + i + j);
      const std::uint64_t packed = packed_signs(reinterpret_cast<const std::uint32_t*>(values));
      std::memcpy(bits + i / 8, &packed, sizeof packed);
      if (!next) continue;
      leave_over(values, kGroup, scale, finite, left);
      store_group(how, left, next + first + i);
    } else {
      for (std::uint64_t j = 0; j < count; ++j) values[j] = value(first + i + j);
      pack_tail(reinterpret_cast<const std::uint32_t*>(values), count, bits + i / 8);
      if (next) leave_over(values, count, scale, finite, next + first + i);
    }
  }
}

void encode(Stream, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload, float* next) {
  with_values(in, [&](auto value) {
    for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
      const float scale = block_scale(value, first, size);
      payload.scales[index] = scale;
      encode_signs(value, first, size, scale, payload.codes + index * rules::packed_sign_bytes(block), next,
                   streamed(count));
    });
  });
  end_stream();
}

void decode(Stream, Payload payload, std::uint64_t count, std::uint64_t block, Store wish, float* out) {
  const Store how = sized(wish, count);
  for_each_block(count, block, [&](std::uint64_t index, std::uint64_t first, std::uint64_t size) {
    const std::uint8_t* bits = payload.codes + index * rules::packed_sign_bytes(block);
    const float scale = payload.scales[index];
    float values[kGroup];
    const std::uint64_t whole = size - size % kGroup;
    for (std::uint64_t i = 0; i < whole; i += kGroup) {
      expand_signs(load_word(bits + i / 8), scale, -scale, values);
      store_group(how, values, out + first + i);
    }
    if (whole == size) return;
    expand_signs(load_tail(bits + whole / 8, size - whole), scale, -scale, values);
    store(how, values, size - whole, out + first + whole);
  });
  end_stream();
}

}  // namespace

const CodecKernels scaled_sign = {encode, decode};

}  // namespace octavo::cpu::OCTAVO_ISA
