// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace octavo {

/// Returns the bytes of a tensor whose elements lie in memory without gaps. Throws Error in the name of `where`:
/// invalid_argument for a size below 0, wrong_type for a quantized dtype, whose tensors are more than memory, and
/// out_of_memory for more bytes than can be asked for.
std::uint64_t tensor_bytes(c10::IntArrayRef shape, c10::ScalarType dtype, const char* where);

}  // namespace octavo
