// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The SYCL back end. NAME.sycl is the source of a kernel for devices, compiled at run time by program.cpp for the
/// device at hand. launch_codecs.cpp, launch_feedback.cpp, launch_steps.cpp and block_codec.cpp enqueue kernels.
namespace octavo::sycl_backend {

#include "octavo/kernels/declarations.inc"

// user_kernel.cpp: DeviceRuntime::compile and launch
Kernel compile_user_kernel(Queue, const std::string& source, const std::string& function);
void launch_user_kernel(Queue, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                        std::uint64_t argument_count);

extern const DeviceRuntime runtime;
extern const ManagedMemory managed;
extern const KernelTable table;

}  // namespace octavo::sycl_backend
