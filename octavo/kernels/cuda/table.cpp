// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/table.h"

#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/lanes/device_backend.h"
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

namespace octavo::lanes {

const KernelTable& table_for_devices() {
  cuda_backend::devices();
  cuda_backend::nvrtc();
  return cuda_backend::table;
}

}  // namespace octavo::lanes
