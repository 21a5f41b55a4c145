// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// Launches the kernels that blocks.h makes of a codec. `codec` is the basename of its source, with which its kernels'
/// names begin.
namespace octavo::sycl_backend {

void encode_blocks(const char* codec, Queue queue, const EncodeInput& in, std::uint64_t count, std::uint64_t block,
                   Payload payload, rules::Residual* next);
void decode_blocks(const char* codec, Queue queue, Payload payload, std::uint64_t count, std::uint64_t block,
                   Store how, float* out);

}  // namespace octavo::sycl_backend
