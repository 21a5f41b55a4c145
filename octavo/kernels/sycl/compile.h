// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sycl/sycl.hpp>

#include "octavo/kernels/lanes/device_backend.h"

/// Device source, compiled for the device of a queue.
namespace octavo::sycl_backend {

using Executable = sycl::kernel_bundle<sycl::bundle_state::executable>;

/// Compiles one of Octavo's own programs, which takes some two seconds, or takes it from SYCL's persistent cache. It
/// also runs on devices without fp64, such as Intel Arc, so a `double` in it does not compile anywhere. Thread-safe.
/// Throws Error internal with the compiler's first error.
Executable compile(const sycl::queue& queue, const lanes::KernelName& name);

/// Compiles a user's own source, which may include the embedded files, and returns its kernel `function`. Throws Error
/// invalid_argument with the compiler's first error.
sycl::kernel compile_kernel(const sycl::queue& queue, const std::string& source, const std::string& function);

/// Returns the widths for which kernels are compiled. A sub-group has 16 items, or the most that the device has: wider
/// ones are slow on the CPU, whose compiler takes shuffles of more than a register apart. A group in which each item
/// takes one element has 4096 items, or fewer where the device allows no more.
lanes::Widths widths_of(const sycl::queue& queue);

}  // namespace octavo::sycl_backend
