// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "octavo/kernels/lanes/device_backend.h"

namespace octavo::cuda_backend {

/// The widths for which kernels are compiled: a group of lanes is a warp. A span is short, so that a tensor of some
/// hundred thousand elements occupies all multiprocessors.
inline constexpr lanes::Widths kWidths = {.lanes = 32, .span = 1024, .largest_group = 256};

/// Returns what cuModuleLoadData loads of a program for an architecture (90 is compute capability 9.0): machine code
/// or, where NVRTC does not know the architecture, the PTX of the newest one before it, which the driver compiles. It
/// comes from a file of an earlier process where there is one (compile_cache.h). Thread-safe. Throws Error internal
/// with the compiler's first error, unsupported for an architecture before all that NVRTC knows.
std::string compile(const lanes::KernelName& name, int architecture);

}  // namespace octavo::cuda_backend
