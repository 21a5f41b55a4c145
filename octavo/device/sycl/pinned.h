// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace octavo::sycl_device {

/// Page-locked memory of the host that the device reads: what `tensor.pin_memory()` gives. Copies from and to it run on
/// a stream; its memory is not reused before they are done. Lives as long as the process.
at::HostAllocator& pinned_allocator();

/// Whether `memory` is the start of such a block.
bool is_pinned(const void* memory);

}  // namespace octavo::sycl_device
