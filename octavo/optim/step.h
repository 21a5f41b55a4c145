// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/step_operands.h"
#include "octavo/optim/step_tensors.h"

/// What the fused steps share: they pass lists of tensors to the kernels that update them.
namespace octavo {

using MakeStep = std::function<void(const LaunchScope& scope, std::size_t parameter, std::uint64_t count,
                                    const StepOperands& operands)>;

/// Calls `make` for parts that together are all elements of all parameters: on CPU from all threads at once, elsewhere
/// once for each parameter, with states in managed memory brought to the device in time (pager.h). Tensors in a memory
/// order that kernels cannot use are copied, and what has changed is copied back at the end.
OCTAVO_API void make_step(const StepTensors& tensors, const MakeStep& make);

/// Throws what an allocation throws where there is no memory for the copies that make_step() would make. It is for a
/// caller that makes several calls, of which the first must not move anything where a later one finds no memory. The
/// allocators of devices keep the memory at hand; that of the CPU gives it back.
OCTAVO_API void require_room(const StepTensors& tensors);

}  // namespace octavo
