// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/reference/values.h"

namespace octavo::reference {

void encode_fp32(Queue, const EncodeInput& in, std::uint64_t count, std::uint64_t, Payload payload,
                 rules::Residual* next) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = value_at(in, i);
    std::memcpy(payload.codes + 4 * i, &value, sizeof value);
    if (next) next[i] = {};
  }
}

void decode_fp32(Queue, Payload payload, std::uint64_t count, std::uint64_t, Store how, float* out) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, payload.codes + 4 * i, sizeof value);
    store(how, value, out[i]);
  }
}

}  // namespace octavo::reference
