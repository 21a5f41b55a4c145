// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

namespace octavo {

/// Packs the signs of the first `input_size` elements of `tensor`, in row-major order, 8 to a byte (rules/sign_bits.h).
/// `tensor` is of any real floating dtype with a sign and has any strides; it may be 0-dim or empty. Returns
/// uint8[ceil(input_size/8)] on its device. `rank` is the device index of seed 000; the tensor's own device decides.
/// Throws Error wrong_type for another dtype, Error invalid_argument where input_size is negative or above numel.
OCTAVO_API at::Tensor packbits(at::Tensor tensor, std::int64_t input_size, std::int64_t rank = 0);

/// Returns the signs as float32[input_size] of +1.0 and -1.0. `packed` is uint8 with at least ceil(input_size/8)
/// elements.
OCTAVO_API at::Tensor unpackbits(at::Tensor packed, std::int64_t input_size, std::int64_t rank = 0);

/// Writes the signs to existing memory: fresh memory costs more than unpacking. `out` is float32, contiguous and on the
/// device of `packed`; its size is the input_size.
OCTAVO_API void unpackbits_out(const at::Tensor& packed, at::Tensor& out);

}  // namespace octavo
