// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

namespace octavo {

/// A back end in a shared library of its own, liboctavo_<name>.so, whose name is sycl or cuda. One's own takes the
/// place of one of them by OCTAVO_SYCL_PLUGIN or OCTAVO_CUDA_PLUGIN (below). The library exports two C symbols:
///   std::uint32_t octavo_backend_abi()
///     returns the kPluginAbi that it was built with
///   const octavo::KernelTable* octavo_backend_create(char* reason, std::size_t capacity)
///     returns null and a reason where its device is missing
struct Plugin {
  const KernelTable* table;  // null where it is missing
  std::string reason;        // why it is missing, or the file that it came from
};

/// Opens the plug-in at the first call; it stays open. Looks beside liboctavo_core, then where the loader looks. Where
/// the environment variable OCTAVO_<NAME>_PLUGIN (OCTAVO_SYCL_PLUGIN) names another file, only that file is tried.
/// Thread-safe.
OCTAVO_API const Plugin& plugin(const std::string& name);

}  // namespace octavo
