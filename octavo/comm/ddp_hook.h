// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/export.h"

namespace c10d {
class Reducer;
}

namespace octavo {

class SerialQueue;

/// Turns a thrown error into the one that the caller of backward() shall get; null: errors stay as they are.
using TranslateError = std::function<std::exception_ptr(const std::exception_ptr&)>;

/// Registers `compressor` as the communication hook of a DDP model's reducer. `parameters[i]` is the model's parameter
/// that the compressor knows as number i; Error invalid_argument is thrown where the reducer lacks it. The hook runs on
/// the thread of `queue`, without the GIL, while backward goes on. Nobody else may use the queue; null: the hook makes
/// one. It is destroyed with the reducer, which waits for the bucket that is being sent. A failure reaches the caller
/// of backward(), translated by `translate`, because torch's engine knows no octavo::Error. After a failure every later
/// bucket fails with the same message. A bucket that the compressor does not know, such as one with a parameter that
/// was frozen, is a failure too.
///
/// DDP accepts a single hook: to change the plan, change it in the compressor. Returns a function that tells, from any
/// thread, for how many backward passes the averages have been delivered. A backward pass that has returned is counted,
/// unless DDP did not synchronise it, which its forward pass decides.
OCTAVO_API std::function<std::uint64_t()> register_ddp_hook(c10d::Reducer& reducer,
                                                            std::shared_ptr<Compressor> compressor,
                                                            const std::vector<at::Tensor>& parameters,
                                                            TranslateError translate = nullptr,
                                                            std::shared_ptr<SerialQueue> queue = nullptr);

}  // namespace octavo
