// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "octavo/export.h"

/// Page-locked host memory: the kernel never moves or swaps it, so a device or a disk reads and writes it by DMA while
/// the host goes on. A region belongs to the tensors on it: views keep it, and the last one frees it. Any thread.
namespace octavo {

/// The system's page, in bytes: the alignment that direct I/O and mlock need.
OCTAVO_API std::int64_t page_bytes();

/// A CPU tensor of zeros whose first byte is at a multiple of `alignment_bytes`, a power of two (0: a page; 1: none is
/// asked for). `for_device` is the type of device that copies asynchronously from and to it: its driver's pinned
/// allocator makes the memory; for the CPU it is mlock. Throws Error invalid_argument for another alignment,
/// out_of_memory where the system refuses (RLIMIT_MEMLOCK), unsupported where the device is absent.
OCTAVO_API at::Tensor pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes = 0,
                                   c10::DeviceType for_device = c10::DeviceType::CPU);

/// Whether all memory of the tensor, which may be a view, is page-locked: in a live region from here, or in torch's.
OCTAVO_API bool is_pinned(const at::Tensor& tensor);

/// Lets the kernel move the pages of the tensor's region again; the memory stays with its tensors. False where the
/// tensor is in no region from here or in one that a device's allocator made, which stays pinned until it is freed.
OCTAVO_API bool unpin(const at::Tensor& tensor);

/// Bytes locked by live regions from here: whole pages on the CPU, as RLIMIT_MEMLOCK counts; as asked for elsewhere.
OCTAVO_API std::int64_t pinned_bytes();

}  // namespace octavo
