// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "octavo/codec/format.h"
#include "octavo/export.h"

/// Encoding and decoding of raw float memory on a device, on the caller's stream and (on CPU) all intra-op threads. The
/// result does not depend on the number of threads: work is cut at block boundaries.
namespace octavo {

/// Encodes `count` values into a payload (format.payload() of memory aligned to 4); the contract is EncodeKernel's.
OCTAVO_API void encode(c10::Device device, Format format, const EncodeInput& input, std::uint64_t count,
                       Payload payload, rules::Residual* next_residual);

/// Decodes `count` values to `out`, or adds them to it. Sets *nonfinite, which the device can write (reserve_on_host),
/// to 1 where one of them is a NaN or an infinity; null: not wanted.
OCTAVO_API void decode(c10::Device device, Format format, Payload payload, std::uint64_t count, Store store, float* out,
                       std::uint32_t* nonfinite = nullptr);

}  // namespace octavo
