// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/bf16.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void encode_bf16(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t, Payload payload,
                 rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_group(count, [&](std::uint64_t first, auto size) {
      value.prefetch(first);
      rules::Bf16 codes[kGroup];
      float left[kGroup];
      for (std::uint64_t j = 0; j < size; ++j) {
        const float v = value(first + j);
        codes[j] = rules::to_bf16(v);
        left[j] = rules::is_finite(v) ? v - rules::from_bf16(codes[j]) : 0.0F;
      }
      if (next) store_residual(Store::assign, value.in, first, left, size, next);
      std::memcpy(payload.codes + 2 * first, codes, 2 * size);
    });
  });
}

void decode_bf16(Queue, Payload payload, std::uint64_t count, std::uint64_t, Store wish, float* out) {
  const Store how = choose_store(wish, count);
  for_each_group(count, [&](std::uint64_t first, auto size) {
    rules::Bf16 codes[kGroup];
    float values[kGroup];
    std::memcpy(codes, payload.codes + 2 * first, 2 * size);
    for (std::uint64_t j = 0; j < size; ++j) values[j] = rules::from_bf16(codes[j]);
    store_part(how, values, size, out + first);
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
