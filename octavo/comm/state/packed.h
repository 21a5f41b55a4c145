// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/comm/ownership.h"

/// What is kept in 8 bits for each element, as uint8: for each range with an owner a payload of int8 blocks. The
/// payloads lie one after another in rank order. A role of that dtype is kept so.
namespace octavo {

enum class Extent;

/// Returns the codec: int8 in blocks of 256, rounded stochastically. If it rounded to nearest, values that change by
/// less than half a code in a step would never change.
const Codec& packing();

/// Returns the bytes of what rank `rank` keeps of a tensor of `count` elements. `extent`: Extent::sent or an extent of
/// what the rank owns.
std::uint64_t packed_bytes(Extent extent, std::uint64_t count, int rank, int world_size, Ownership ownership);

/// Returns where the payload of a range that `rank` sends to its owner begins in the rank's tensor of Extent::sent.
std::uint64_t packed_offset(const Range& range, std::uint64_t count, int rank, int world_size, Ownership ownership);

/// unpack() converts to float32. pack() converts back, rounded to nearest.
at::Tensor unpack(const at::Tensor& bytes, Extent extent, std::uint64_t count, int rank, int world_size,
                  Ownership ownership);
at::Tensor pack(const at::Tensor& values, Extent extent, std::uint64_t count, int rank, int world_size,
                Ownership ownership);

}  // namespace octavo
