// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/sycl/operator_traits.h"

namespace octavo::sycl_device {

/// Runs the CPU kernel of `op` on the arguments on the stack, whose tensors are of one device, after all that the
/// device's current stream was given before; results are tensors of the device. Nothing is copied. Returns when it is
/// done. Throws Error invalid_argument where a tensor is elsewhere, unsupported for collectives on sparse tensors and
/// for memory that the host cannot read; numbers (0-dim CPU tensors) are taken from the CPU.
void call_on_cpu(const c10::OperatorHandle& op, const OperatorTraits& traits, torch::jit::Stack* stack);

}  // namespace octavo::sycl_device
