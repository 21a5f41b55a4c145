// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/comm/layout.h"

/// What is kept in 8 bits for each element: of each range with an owner a payload of int8 blocks, one after another in
/// the order of the ranks, as uint8. A role of that dtype is kept so.
namespace octavo {

enum class Extent;

/// int8 in blocks of 256, rounded stochastically: rounded to nearest, what changes by less than half a code in a step
/// would never change.
const Codec& packing();

/// Of what rank `rank` keeps, Extent::sent or one of what it owns, of a tensor of `count` elements.
std::uint64_t packed_bytes(Extent extent, std::uint64_t count, int rank, int world_size, Ownership ownership);

/// Where the payload of a range begins that `rank` sends to its owner, in its tensor of Extent::sent.
std::uint64_t packed_offset(const Range& range, std::uint64_t count, int rank, int world_size, Ownership ownership);

/// To float32, and back (rounded to nearest).
at::Tensor unpack(const at::Tensor& bytes, Extent extent, std::uint64_t count, int rank, int world_size,
                  Ownership ownership);
at::Tensor pack(const at::Tensor& values, Extent extent, std::uint64_t count, int rank, int world_size,
                Ownership ownership);

}  // namespace octavo
