// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/table.h"

#include <cstddef>
#include <cstdio>
#include <exception>

#include "octavo/export.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/lanes/table.h"
#include "octavo/kernels/sycl/devices.h"

namespace octavo::sycl_backend {

using namespace lanes;  // the kernels' names

constinit const KernelTable table = {
    .name = "sycl",
    .runtime = &runtime,
    .managed = &managed,
#include "octavo/kernels/entries.inc"
};

}  // namespace octavo::sycl_backend

extern "C" {

OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi; }

OCTAVO_API const octavo::KernelTable* octavo_backend_create(char* reason, std::size_t capacity) {
  try {
    if (!octavo::sycl_backend::devices().empty()) return &octavo::sycl_backend::table;
    std::snprintf(reason, capacity, "SYCL finds neither a GPU nor a CPU device; intel-opencl-rt provides the CPU");
  } catch (const std::exception& error) {
    std::snprintf(reason, capacity, "%s", error.what());
  }
  return nullptr;
}

}  // extern "C"
