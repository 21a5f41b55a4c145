// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "octavo/device/sycl/same_device.h"

namespace octavo::sycl_device {

/// What is known of an operator from its schema.
struct OperatorTraits {
  explicit OperatorTraits(const c10::OperatorHandle& op, bool is_sparse = false);

  std::size_t arguments;
  std::vector<std::size_t> written;      // positions
  std::optional<std::size_t> generator;  // none there means the default one
  CpuTensors cpu_tensors;                // that it takes beside tensors of the device
  bool is_sparse;                        // a tensor may be
  bool is_collective;                    // of c10d: its work goes on when the call has returned
};

/// Runs the CPU kernel of `op` on the arguments on the stack, whose tensors are of one device, after all that the
/// device's current stream was given before; results are tensors of the device. Nothing is copied. Returns when it is
/// done. Throws torch's c10::Error where a tensor is elsewhere and CUDA would refuse it (same_device.h), Error
/// unsupported for collectives on sparse tensors and for memory that the host cannot read.
void call_on_cpu(const c10::OperatorHandle& op, const OperatorTraits& traits, torch::jit::Stack* stack);

}  // namespace octavo::sycl_device
