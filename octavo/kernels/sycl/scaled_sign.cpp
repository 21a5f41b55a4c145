// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void encode_scaled_sign(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                        rules::Residual* next) {
  encode_blocks("scaled_sign", queue, in, count, block, payload, next);
}

void decode_scaled_sign(Queue queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how,
                        float* out) {
  decode_blocks("scaled_sign", queue, payload, count, block, how, out);
}

}  // namespace octavo::sycl_backend
