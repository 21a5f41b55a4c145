// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/export.h"

/// Device memory as the host sees it, for code that works on the CPU.
namespace octavo {

/// Whether the host reads and writes a device's tensors where they lie: on cpu and, but for memory of kind `device` on
/// a GPU, on sycl.
OCTAVO_API bool has_host_alias(c10::Device device);

/// The tensor itself on CPU; on sycl a CPU tensor over the same memory, which it holds. Nothing is copied or waited
/// for. Throws Error unsupported for other devices, for tensors that are not strided and for memory that the host
/// cannot read.
OCTAVO_API at::Tensor host_alias(const at::Tensor& tensor);

/// The tensor for the kernels that are fastest on it: itself, or where its device is the host's own processor (sycl
/// over a CPU) the host alias, on which the CPU's kernels run without launches. In the second case the call waits for
/// the device's current stream.
OCTAVO_API at::Tensor where_kernels_run(const at::Tensor& tensor);

}  // namespace octavo
