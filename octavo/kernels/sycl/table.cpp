// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/table.h"

#include "octavo/kernels/lanes/device_backend.h"
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

namespace octavo::lanes {

const KernelTable& table_for_devices() {
  if (sycl_backend::devices().empty()) {
    throw Error(ErrorCode::unsupported,
                "[kernels.sycl] SYCL finds neither a GPU nor a CPU device; intel-opencl-rt provides the CPU");
  }
  return sycl_backend::table;
}

}  // namespace octavo::lanes
