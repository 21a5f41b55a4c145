// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// The sum over ranks of a sparse tensor on the host, coalesced, with the same bits on all of them, which call it
/// together; ranks are added in their order. `digest`: of all on which the ranks must agree beside the tensor's dtype
/// and sizes. Throws what Wire throws, and Error communication where a rank has another digest, or a tensor of another
/// dtype or of other sizes, on all ranks that have another one's; and where what a rank sends is no part of such a
/// tensor.
///
/// Not by the process group: Gloo keeps a name of each operation that was done, which its two threads assign without a
/// lock (seen in torch 2.13). That of a sparse all-reduce is too long for std::string to hold in place, and both free
/// it.
OCTAVO_API at::Tensor sum_of_sparse(Wire& wire, const at::Tensor& own, std::uint64_t digest);

}  // namespace octavo
