// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

/// The kernels of this back end, compiled for the device of a queue.
namespace octavo::sycl_backend {

/// A file of device source, as the build embeds it.
struct SourceFile {
  const char* name;  // the name by which it is included
  const char* text;
};
extern const std::vector<SourceFile> embedded_files;

struct KernelName {
  const char* program;  // the basename of its source: "adamw" is octavo/kernels/sycl/adamw.sycl
  std::string function;
  /// Options of the compiler, separated by spaces. The same source with other definitions is another program.
  std::string options = {};
};

/// Returns a kernel. The first call for a program and a device compiles the program, which takes some two seconds, or
/// takes it from SYCL's persistent cache. Thread-safe. Where the program does not compile, every call throws Error
/// internal with the compiler's first error.
sycl::kernel kernel(const sycl::queue& queue, const KernelName& name);

/// Compiles a user's own source, which may include the embedded files, and returns its kernel `function`. Throws Error
/// invalid_argument with the compiler's first error.
sycl::kernel compile_kernel(const sycl::queue& queue, const std::string& source, const std::string& function);

/// Returns the number of items of a sub-group, for which the kernels are compiled: 16, or the most that the device has.
/// Wider sub-groups are slow on the CPU, whose compiler takes shuffles of more than a register apart.
std::uint64_t lanes(const sycl::queue& queue);
/// Returns the number of items of a group in which each item takes one element: 4096, or fewer where the device allows
/// no more.
std::uint64_t largest_group(const sycl::queue& queue);

}  // namespace octavo::sycl_backend
