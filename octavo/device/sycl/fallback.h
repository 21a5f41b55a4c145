// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace octavo::sycl_device {

/// Runs the CPU kernel of `op` on the arguments on the stack, whose tensors are of one device, after all that the
/// device's current stream was given before; results are tensors of the device. Nothing is copied. Returns when it is
/// done. Throws Error invalid_argument where a tensor is elsewhere; numbers (0-dim CPU tensors) are taken from the CPU.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Gives the device every operator that the CPU has and that is not registered for the device yet, and a fallback for
/// those that come later.
void register_fallback();

}  // namespace octavo::sycl_device
