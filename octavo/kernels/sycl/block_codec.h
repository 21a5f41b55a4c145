// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// Launches the kernels that blocks.h makes of a codec.
namespace octavo::sycl_backend {

struct CodecName {
  const char* program;
  const char* codec;        // what its kernels' names begin with
  bool needs_fp64 = false;  // to encode
};

void encode_blocks(const CodecName& name, Queue queue, const EncodeInput& in, std::uint64_t count,
                   std::uint64_t block, Payload payload, rules::Residual* next);
void decode_blocks(const CodecName& name, Queue queue, Payload payload, std::uint64_t count, std::uint64_t block,
                   Store how, float* out);

}  // namespace octavo::sycl_backend
