// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octavo/export.h"
#include "octavo/kernels/table.h"

/// The back ends. `reference` and `cpu` are always linked. `sycl` and `cuda` are plug-ins, liboctavo_<name>.so beside
/// this library or on the loader's path, opened at first use.
namespace octavo {

/// Raise it with every change to KernelTable, DeviceRuntime or a type that they pass.
inline constexpr std::uint32_t kPluginAbi = 21;

struct BackendStatus {
  std::string name;
  bool available;
  std::string reason;  // why it is missing or, where it is available, what was chosen
};

/// Returns the table of a back end: "reference", "cpu", "sycl" or "cuda". Thread-safe; the table exists as long as the
/// process. Throws Error invalid_argument for an unknown name, unsupported (one sentence, with the reason) for a
/// missing back end.
OCTAVO_API const KernelTable& backend(std::string_view name);

/// Returns the table for tensors in ordinary memory: `cpu`, or what OCTAVO_BACKEND names.
OCTAVO_API const KernelTable& host_backend();

/// Returns the state of one back end, without loading any other. An unknown name is reported as a missing back end.
OCTAVO_API BackendStatus backend_status(std::string_view name);
/// Returns every back end and its state, for `octavo info`.
OCTAVO_API std::vector<BackendStatus> backends();

/// Returns the instruction set of the `cpu` back end: the best that this CPU has of "avx512", "avx2" and "portable", or
/// the one that OCTAVO_ISA names. Throws Error invalid_argument where OCTAVO_ISA names one that is unknown or not on
/// this CPU.
OCTAVO_API std::string_view cpu_isa();

}  // namespace octavo
