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
/// The rules, the operands and every NAME.sycl.
extern const std::vector<SourceFile> embedded_files;
/// The source that includes every NAME.sycl.
extern const char* const program_text;

/// The kernel of that name. The first call for a device compiles all kernels for it, some two seconds, or takes them
/// from SYCL's persistent cache. Thread-safe. Throws Error internal with the compiler's first error where they do not
/// compile, once and every time.
sycl::kernel kernel(const sycl::queue& queue, const std::string& name);

/// Items of a sub-group, for which the kernels are compiled: the most that the device has.
std::uint64_t lanes(const sycl::queue& queue);
/// Items of a group that takes an item an element: 4096, or fewer where the device allows no more.
std::uint64_t largest_group(const sycl::queue& queue);

}  // namespace octavo::sycl_backend
