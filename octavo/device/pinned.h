// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "octavo/export.h"

/// Page-locked host memory: the kernel never moves or swaps it, so a device or a disk reads and writes it by DMA while
/// the host goes on. A region belongs to the tensors on it: views keep it alive, and the last tensor frees it. Any
/// thread may call these functions.
namespace octavo {

/// The size of the system's page, in bytes: the alignment that direct I/O and mlock need.
OCTAVO_API std::int64_t page_bytes();

/// Makes a CPU tensor of zeros whose first byte is at a multiple of `alignment_bytes`, a power of two (0: a page; 1: no
/// alignment). `for_device` is the type of device that copies asynchronously from and to it. The memory comes from the
/// pinned allocator of that device's driver; for the CPU it is locked with mlock. Throws Error invalid_argument for
/// another alignment, out_of_memory where the system refuses (RLIMIT_MEMLOCK), unsupported where the device is absent.
OCTAVO_API at::Tensor pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes = 0,
                                   c10::DeviceType for_device = c10::DeviceType::CPU);

/// Whether all memory of the tensor, which may be a view, is page-locked: in a live region made here, or by torch.
OCTAVO_API bool is_pinned(const at::Tensor& tensor);

/// Lets the kernel move the pages of the tensor's region again; the memory stays with its tensors. Returns false where
/// the tensor is in no region made here, or in one that a device's allocator made. The latter stays pinned until it is
/// freed.
OCTAVO_API bool unpin(const at::Tensor& tensor);

/// The bytes locked by live regions made here: on the CPU in whole pages, as RLIMIT_MEMLOCK counts them; elsewhere as
/// asked of the device's allocator.
OCTAVO_API std::int64_t pinned_bytes();

}  // namespace octavo
