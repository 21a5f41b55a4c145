// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>

#include "octavo/comm/plan.h"
#include "octavo/export.h"

namespace c10d {
class Backend;
}

namespace octavo {

enum class ReduceOp { sum, average };

/// Adds (or averages) a tensor over the ranks of `backend` (`group->getBackend(c10::kCPU)`), in place, with the plan's
/// codec on the wire. With sign-vote the result is the majority's sign. Blocks. `tensor`: real floating dtype on a
/// device that has kernels, any strides; the work is done in order with the device's current stream. `call`: a number
/// that is the same on all ranks and another one in each call; what a codec draws is drawn from it and the `seed` of
/// the run. The result has the same bits on all ranks. The tensor is unchanged where it throws, unless the
/// communication failed.
///
/// Throws Error: invalid_argument for a plan that needs more than one call (feedback, lsh, a warm-up, `auto`) or
/// several parameters (rules), and for a sum over hits; wrong_type; unsupported; communication, also where ranks call
/// it with tensors of other sizes or with another plan, `op`, `call` or `seed`, before a value of the tensor is sent;
/// timeout.
OCTAVO_API void all_reduce(at::Tensor& tensor, const Plan& plan, c10::intrusive_ptr<c10d::Backend> backend, ReduceOp op,
                           std::chrono::milliseconds timeout, std::uint64_t call = 0, std::uint64_t seed = 0);

}  // namespace octavo
