// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The SYCL back end, which runs the kernels of kernels/lanes. compile.cpp compiles them for the device at hand,
/// launch.cpp enqueues them.
namespace octavo::sycl_backend {

// launch.cpp: DeviceRuntime::compile and launch
Kernel compile_user_kernel(Queue, const std::string& source, const std::string& function);
void launch_user_kernel(Queue, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                        std::uint64_t argument_count);

#include "octavo/kernels/lanes/runtime.inc"

extern const DeviceRuntime runtime;
extern const ManagedMemory managed;
extern const KernelTable table;

}  // namespace octavo::sycl_backend
