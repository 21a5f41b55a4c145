// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/bf16.h"

#include <cstring>

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"

namespace octavo::reference {

void encode_bf16(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t, Payload payload,
                 rules::Residual* next) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = value_at(in, i);
    const rules::Bf16 code = rules::to_bf16(value);
    std::memcpy(payload.codes + 2 * i, &code, sizeof code);
    const float left_over = rules::is_finite(value) ? value - rules::from_bf16(code) : 0.0F;
    if (next) next[i] = residual_at(in, i, left_over);
  }
}

void decode_bf16(Queue, Payload payload, std::uint64_t count, std::uint64_t, Store how, float* out) {
  for (std::uint64_t i = 0; i < count; ++i) {
    rules::Bf16 code;
    std::memcpy(&code, payload.codes + 2 * i, sizeof code);
    store(how, rules::from_bf16(code), out[i]);
  }
}

}  // namespace octavo::reference
