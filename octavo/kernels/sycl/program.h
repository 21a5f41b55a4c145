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
  const char* name;  // as it is included
  const char* text;
};
extern const std::vector<SourceFile> embedded_files;

struct KernelName {
  const char* program;  // the basename of its source: "adamw" is octavo/kernels/sycl/adamw.sycl
  std::string function;
  std::string options =
      {};  // of the compiler, with spaces between: the same source with other definitions is another program
};

/// The first call for a program and a device compiles it, some two seconds, or takes it from SYCL's persistent cache.
/// Thread-safe. Throws Error internal with the compiler's first error where it does not compile, every time.
sycl::kernel kernel(const sycl::queue& queue, const KernelName& name);

/// The kernel `function` of a source of a user's own, which may include the files that are embedded. Throws Error
/// invalid_argument with the compiler's first error.
sycl::kernel compile_kernel(const sycl::queue& queue, const std::string& source, const std::string& function);

/// Items of a sub-group, for which the kernels are compiled: 16, or the most that the device has. Wider ones are slow
/// on the CPU, whose compiler takes shuffles of more than a register apart.
std::uint64_t lanes(const sycl::queue& queue);
/// Items of a group that takes an item an element: 4096, or fewer where the device allows no more.
std::uint64_t largest_group(const sycl::queue& queue);

}  // namespace octavo::sycl_backend
