// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// Returns the sum over ranks of a sparse tensor on the host, coalesced, with the same bits on all ranks. All ranks
/// call it together, and their tensors are added in rank order. `digest`: of all that the ranks must agree on beside
/// the tensor's dtype and sizes. Throws what Wire throws. Throws Error communication where a rank has another digest,
/// or a tensor of another dtype or of other sizes, on all ranks that have another one's; and where what a rank sends is
/// no part of such a tensor.
///
/// The process group's sparse all-reduce is not used: Gloo keeps a name of each operation that was done, which its two
/// threads assign without a lock (seen in torch 2.13). The name of a sparse all-reduce is too long for std::string to
/// hold in place, and both threads free it.
OCTAVO_API at::Tensor sum_of_sparse(Wire& wire, const at::Tensor& own, std::uint64_t digest);

}  // namespace octavo
