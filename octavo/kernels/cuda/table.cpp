// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/table.h"

#include <cstddef>
#include <cstdio>
#include <exception>

#include "octavo/export.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/lanes/table.h"

namespace octavo::cuda_backend {

using namespace lanes;  // the kernels' names

constinit const KernelTable table = {
    .name = "cuda",
    .runtime = &runtime,
    .managed = &managed,
#include "octavo/kernels/entries.inc"
};

}  // namespace octavo::cuda_backend

extern "C" {

OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi; }

OCTAVO_API const octavo::KernelTable* octavo_backend_create(char* reason, std::size_t capacity) {
  try {
    octavo::cuda_backend::devices();
    octavo::cuda_backend::nvrtc();
    return &octavo::cuda_backend::table;
  } catch (const std::exception& error) {
    std::snprintf(reason, capacity, "%s", error.what());
  }
  return nullptr;
}

}  // extern "C"
