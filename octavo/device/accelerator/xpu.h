// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/accelerator.h"

namespace octavo {

/// Intel GPUs by torch.xpu. What depends on Python packages beside torch (oneCCL's bindings, old releases of Intel's
/// extension) is added by the Python class.
class OCTAVO_API XpuAccelerator : public Accelerator {
 public:
  XpuAccelerator() : Accelerator(c10::DeviceType::XPU, "xpu") {}

  /// The current stream: XPU has no default stream that others wait for, as CUDA's do.
  c10::Stream default_stream(WhichDevice index = std::nullopt) const override { return current_stream(index); }
  std::string communication_backend_name() const override { return "xccl"; }
  std::vector<std::string> visible_devices_envs() const override { return {"ZE_AFFINITY_MASK"}; }
};

}  // namespace octavo
