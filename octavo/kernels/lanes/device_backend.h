// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octavo/kernels/runtime.h"
#include "octavo/kernels/table.h"

/// What the kernels of this folder are to a back end whose device runs items in groups, SYCL or CUDA. NAME.kernel is
/// device source, which the back end compiles at run time for the device at hand. launch_*.cpp enqueue it, in the
/// object files that each such back end links.
namespace octavo::lanes {

/// A file of device source, as the build embeds it.
struct SourceFile {
  const char* name;  // the name by which it is included
  const char* text;
};
extern const std::vector<SourceFile> embedded_files;

struct KernelName {
  const char* program;  // the basename of its source: "adamw" is octavo/kernels/lanes/adamw.kernel
  std::string function;
  /// Options of the compiler, separated by spaces. The same source with other definitions is another program.
  std::string options = {};
};

/// Returns the embedded file of a program, by the name under which it is included.
std::string file_of(const KernelName& name);

/// How a device shares out work.
struct Widths {
  std::uint64_t lanes;          // items of a group that run together: a sub-group of SYCL, a warp of CUDA
  std::uint64_t span;           // elements that a group takes at least, so that it is worth starting
  std::uint64_t largest_group;  // items of a group in which each item takes one element
};

/// Returns the compiler's options for a program: OCTAVO_LANES, OCTAVO_SPAN and its own, of KernelName.
std::vector<std::string> options_of(const std::string& own, Widths widths);

/// Returns the line of a compiler's log with the first error; the first line where there is none.
std::string first_error(const std::string& log);

struct Grid {
  std::uint64_t groups, group_size;
};

// The back end implements these three. `queue` may be the calling thread.

/// Returns the back end's table, which the plug-in gives its loader (kernels/plugin.h). Throws Error unsupported where
/// a device, or what it needs, is missing.
const KernelTable& table_for_devices();

Widths widths_of(Queue queue);

/// Compiles a kernel at its first use, with OCTAVO_LANES, OCTAVO_SPAN and the name's own options defined, and enqueues
/// it. On the calling thread it returns when the kernel has run. Thread-safe. Throws Error internal where the program
/// does not compile or the driver refuses it.
void enqueue(Queue queue, const KernelName& name, Grid grid, std::span<const KernelArgument> arguments);

}  // namespace octavo::lanes
