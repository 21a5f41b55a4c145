// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/export.h"

/// Device memory as the host sees it, for code that works on the CPU.
namespace octavo {

/// Whether the host reads and writes a device's tensors where they lie: true on cpu and on sycl. On sycl memory of kind
/// `device` on a GPU is the exception.
OCTAVO_API bool has_host_alias(c10::Device device);

/// Returns the tensor itself on CPU. On sycl returns a CPU tensor over the same memory, which it keeps alive. Copies
/// nothing and waits for nothing. Throws Error unsupported for other devices, for tensors that are not strided and for
/// memory that the host cannot read.
OCTAVO_API at::Tensor host_alias(const at::Tensor& tensor);

/// Returns the tensor on which kernels run fastest. That is the host alias where the device is the host's own processor
/// (sycl over a CPU): the CPU's kernels run on it without launches, and the call first waits for the device's current
/// stream. Otherwise it is the tensor itself.
OCTAVO_API at::Tensor where_kernels_run(const at::Tensor& tensor);

}  // namespace octavo
