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

/// Symmetric memory of `size` bytes on each rank, on all of them together: on the CPU that of ranks of one host
/// (`backend` is a SharedBackend), on another device torch's own, for which the group of that name is known to torch.
/// Throws Error unsupported where there is none, invalid_argument for less than a byte.
OCTAVO_API SymmetricMemoryPtr make_symmetric_memory(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                    const std::string& group_name, c10::Device device,
                                                    std::int64_t size, std::chrono::milliseconds deadline);

}  // namespace octavo::dc
