// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/block_codec.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

void encode_ballot(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block, Payload payload,
                   rules::Residual* next) {
  encode_blocks({"majority_vote", "ballot"}, queue, in, count, block, payload, next);
}

void encode_majority_vote(Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block,
                          Payload payload, rules::Residual* next) {
  encode_blocks({"majority_vote", "majority_vote"}, queue, in, count, block, payload, next);
}

void decode_majority_vote(Queue queue, Payload payload, std::uint64_t count, std::uint64_t block, Store how,
                          float* out) {
  decode_blocks({"majority_vote", "majority_vote"}, queue, payload, count, block, how, out);
}

}  // namespace

const CodecKernels ballot = {encode_ballot, scaled_sign.decode};
const CodecKernels majority_vote = {encode_majority_vote, decode_majority_vote};

}  // namespace octavo::sycl_backend
