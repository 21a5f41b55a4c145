// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "octavo/device/sycl/same_device.h"

namespace octavo::sycl_device {

/// What an operator's schema tells about it.
struct OperatorTraits {
  explicit OperatorTraits(const c10::OperatorHandle& op, bool is_sparse = false);

  std::size_t arguments;
  std::vector<std::size_t> written;      // positions of the arguments that it writes to
  std::optional<std::size_t> generator;  // its position; an argument that is none there means the default generator
  CpuTensors cpu_tensors;                // those that it takes beside tensors of the device
  bool is_sparse;                        // whether a tensor may be sparse
  bool is_collective;                    // whether it is of c10d: its work goes on when the call has returned
};

/// Runs the CPU kernel of `op` on the arguments on the stack, all of whose tensors are of one device. The kernel runs
/// after all that the device's current stream was given before, and its results are tensors of the device. Nothing is
/// copied. Returns when the kernel is done. Throws torch's c10::Error where a tensor is elsewhere and CUDA would refuse
/// it (same_device.h), and Error unsupported for collectives on sparse tensors and for memory that the host cannot
/// read.
void call_on_cpu(const c10::OperatorHandle& op, const OperatorTraits& traits, torch::jit::Stack* stack);

}  // namespace octavo::sycl_device
