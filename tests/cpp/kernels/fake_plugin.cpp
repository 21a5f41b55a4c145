// SPDX-License-Identifier: Apache-2.0
// A back end of the wrong table version: the loader must say so, not call it.
#include <cstddef>
#include <cstdint>

#include "octavo/kernels/backend.h"

extern "C" OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi + 1; }
extern "C" OCTAVO_API const octavo::KernelTable* octavo_backend_create(char*, std::size_t) { return nullptr; }
