// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/export.h"

namespace c10d {
class Reducer;
}

namespace octavo {

/// Registers `compressor` as the communication hook of a DDP model's reducer. `parameters[i]` is the model's parameter
/// that the compressor knows as number i. The hook runs on a thread of its own, without the GIL, while backward goes
/// on. A failure reaches the caller of backward(); after one, every later bucket fails with the same sentence.
/// DDP accepts a single hook: to change the plan, change it in the compressor. Returns what tells, from any thread, of
/// how many backward passes the averages have been delivered: a backward pass that returns is counted, unless DDP did
/// not synchronise it, which its forward pass decides.
OCTAVO_API std::function<std::uint64_t()> register_ddp_hook(c10d::Reducer& reducer,
                                                            std::shared_ptr<Compressor> compressor,
                                                            const std::vector<at::Tensor>& parameters);

}  // namespace octavo
