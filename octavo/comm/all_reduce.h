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
/// codec on the wire; with sign-vote the result is the majority's sign. Blocks. `tensor`: real floating dtype on a
/// device that has kernels, any strides; the work is done in order with the device's current stream. `call`: a number,
/// the same on all ranks and another one in each call, from which, with the `seed` of the run, is drawn what a codec
/// draws. The result has the same bits on all ranks. Throws Error: invalid_argument for a plan that needs more than one
/// call (feedback, lsh, a warm-up, `auto`) or several parameters (rules), and for a sum over hits; wrong_type;
/// unsupported; communication, before anything is sent also where ranks call it with tensors of other sizes or with
/// another plan, `op`, `call` or `seed`; timeout. The tensor is unchanged unless the communication failed.
OCTAVO_API void all_reduce(at::Tensor& tensor, const Plan& plan, c10::intrusive_ptr<c10d::Backend> backend, ReduceOp op,
                           std::chrono::milliseconds deadline, std::uint64_t call = 0, std::uint64_t seed = 0);

}  // namespace octavo
