// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "octavo/device/accelerator.h"

namespace octavo {

/// Any SYCL device as torch's device type `sycl`, which Octavo registers as PrivateUse1 where SYCL's run time is
/// installed and no other package has taken that place.
class OCTAVO_API SyclAccelerator : public Accelerator {
 public:
  SyclAccelerator() : Accelerator(c10::DeviceType::PrivateUse1, "sycl") {}

  std::int64_t device_count() const override { return is_registered() ? Accelerator::device_count() : 0; }
  std::string why_absent() const override {
    return is_registered() ? "SYCL's run time finds no device" : "SYCL's run time is not installed (octavo[sycl])";
  }
  std::vector<std::string> visible_devices_envs() const override { return {"ONEAPI_DEVICE_SELECTOR"}; }
  std::vector<std::string> export_envs() const override { return {"ONEAPI", "SYCL", "OCL_ICD"}; }

 private:
  static bool is_registered() {
    return c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1) && c10::get_privateuse1_backend() == "sycl";
  }
};

}  // namespace octavo
