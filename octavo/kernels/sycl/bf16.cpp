// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void encode_bf16(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t, Payload payload,
                 rules::Residual* next) {
  launch_elements(queue, {"bf16", "bf16_encode"}, count, in, count, payload.codes, next);
}

void decode_bf16(Queue queue, Payload payload, std::uint64_t count, std::uint64_t, Store how, float* out) {
  launch_elements(queue, {"bf16", "bf16_decode"}, count, static_cast<const std::uint8_t*>(payload.codes), count, how,
                  out);
}

}  // namespace octavo::sycl_backend
