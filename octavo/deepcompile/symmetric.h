// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <chrono>
#include <cstdint>
#include <string>

#include "octavo/export.h"

namespace c10d {
class Backend;
}

namespace octavo::dc {

using SymmetricMemoryPtr = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

/// Whether there may be symmetric memory on the device: on the CPU, and where torch has an allocator for it.
OCTAVO_API bool has_symmetric_memory(c10::Device device);

/// Makes symmetric memory of `size` bytes on each rank; all ranks call it together. On the CPU it is memory of the
/// ranks of one host (`backend` is a SharedBackend). On another device it is torch's own, and torch must know the group
/// of that name. Throws Error unsupported where there is none, Error invalid_argument for less than a byte.
OCTAVO_API SymmetricMemoryPtr make_symmetric_memory(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                    const std::string& group_name, c10::Device device,
                                                    std::int64_t size, std::chrono::milliseconds timeout);

}  // namespace octavo::dc
