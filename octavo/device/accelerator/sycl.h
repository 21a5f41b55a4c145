// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/accelerator.h"

namespace octavo {

/// Any SYCL device as torch's device type `sycl`, which `register_sycl_device` (octavo/device/sycl/registration.h) makes.
class OCTAVO_API SyclAccelerator : public Accelerator {
 public:
  SyclAccelerator() : Accelerator(c10::DeviceType::PrivateUse1, "sycl") {}

  std::int64_t device_count() const override;
  std::string why_absent() const override;
  /// Gloo under both device types: it works on the memory that host and device share.
  std::string communication_backend_name() const override { return "cpu:gloo,sycl:octavo"; }
  std::vector<std::string> visible_devices_envs() const override { return {"ONEAPI_DEVICE_SELECTOR"}; }
  std::vector<std::string> export_envs() const override { return {"ONEAPI", "SYCL", "OCL_ICD"}; }
};

}  // namespace octavo
