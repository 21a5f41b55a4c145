// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

/// Compiled programs of earlier processes: CUDA's driver keeps what it compiles from PTX, but nothing keeps what NVRTC
/// makes of a source. A program is a file in OCTAVO_CUDA_CACHE or, where that is not set, in octavo/cuda below
/// XDG_CACHE_HOME or ~/.cache. An empty OCTAVO_CUDA_CACHE keeps none. Processes may use the folder at the same time.
/// Files that cannot be read or written only cost the time of compiling again.
namespace octavo::cuda_backend {

/// Returns what was saved for exactly this identity, a text that says all that a program is made of.
std::optional<std::string> load_compiled(const std::string& identity);
void save_compiled(const std::string& identity, const std::string& compiled);

}  // namespace octavo::cuda_backend
