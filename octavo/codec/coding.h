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

/// Decodes `count` values to `out`, or adds them to it.
OCTAVO_API void decode(c10::Device device, Format format, Payload payload, std::uint64_t count, Store store,
                       float* out);

/// Whether a payload on the CPU decodes to finite values only: reads the scales, or the values of a codec without.
OCTAVO_API bool payload_is_finite(Format format, const std::uint8_t* bytes, std::uint64_t count);

}  // namespace octavo
