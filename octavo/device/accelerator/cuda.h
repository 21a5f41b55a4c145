// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/accelerator.h"

namespace octavo {

/// GPUs under the name of CUDA, ROCm's too. Half precisions and Triton are said to be supported, as on all of today's;
/// what the GPU at hand is capable of, torch.cuda tells and the Python class asks.
class OCTAVO_API CudaAccelerator : public Accelerator {
 public:
  CudaAccelerator() : Accelerator(c10::DeviceType::CUDA, "cuda") {}

  bool is_triton_supported() const override { return true; }
  std::string communication_backend_name() const override { return "nccl"; }
  std::vector<std::string> visible_devices_envs() const override { return {"CUDA_VISIBLE_DEVICES"}; }
  std::vector<std::string> export_envs() const override { return {"NCCL"}; }
};

}  // namespace octavo
