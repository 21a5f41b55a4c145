// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void encode_int4(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                 rules::Residual* next) {
  encode_blocks("int4", queue, in, count, block, payload, next);
}

void decode_int4(Queue queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  decode_blocks("int4", queue, payload, count, block, how, out);
}

}  // namespace octavo::sycl_backend
