// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

void encode(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
            rules::Residual* next) {
  encode_blocks({.program = "scaled_sign", .codec = "scaled_sign", .needs_fp64 = true}, queue, in, count, block,
                payload, next);
}

void decode(Queue queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how, float* out) {
  decode_blocks({"scaled_sign", "scaled_sign"}, queue, payload, count, block, how, out);
}

}  // namespace

const CodecKernels scaled_sign = {encode, decode};

}  // namespace octavo::sycl_backend
