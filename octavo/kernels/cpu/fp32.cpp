// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void encode_fp32(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t, Payload payload,
                 rules::Residual* next) {
  with_values(in, [&](auto value) {
    for_each_group(count, [&](std::uint64_t first, auto size) {
      float values[kGroup];
      value.prefetch(first);
      for (std::uint64_t j = 0; j < size; ++j) values[j] = value(first + j);
      std::memcpy(payload.codes + 4 * first, values, 4 * size);
    });
  });
  if (next) std::memset(next, 0, count * sizeof *next);
}

void decode_fp32(Queue, Payload payload, std::uint64_t count, std::uint64_t, Store wish, float* out) {
  const Store how = choose_store(wish, count);
  for_each_group(count, [&](std::uint64_t first, auto size) {
    float values[kGroup];
    std::memcpy(values, payload.codes + 4 * first, 4 * size);
    store_part(how, values, size, out + first);
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
