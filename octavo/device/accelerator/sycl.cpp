// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/accelerator/sycl.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "octavo/kernels/backend.h"

namespace octavo {

namespace {

/// Another library may have taken torch's place for a device from outside.
bool is_registered() {
  return c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1) && c10::get_privateuse1_backend() == "sycl";
}

}  // namespace

std::int64_t SyclAccelerator::device_count() const { return is_registered() ? Accelerator::device_count() : 0; }

std::string SyclAccelerator::why_absent() const {
  if (is_available()) return "";
  for (const BackendStatus& status : backends()) {
    if (status.name == "sycl" && !status.available) return status.reason;
  }
  return "`import octavo.sycl` makes the device";
}

}  // namespace octavo
