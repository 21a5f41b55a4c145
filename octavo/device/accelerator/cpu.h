// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/accelerator.h"
#include "octavo/device/host_memory.h"

namespace octavo {

/// The host as an accelerator: one device, `cpu`, which all local ranks share, so any index that a rank asks for is
/// that device. Operations are finished when they return: a stream is always empty, and all that it does is to be
/// current. The allocator keeps no account, so memory is what Linux says of the whole process, not of its tensors
/// alone: resident bytes, VmRSS and VmHWM.
class OCTAVO_API CpuAccelerator : public Accelerator {
 public:
  CpuAccelerator() : Accelerator(c10::DeviceType::CPU, "cpu") {}

  c10::Device require(std::string_view function, WhichDevice index = std::nullopt) const override;
  bool is_synchronized_device() const override { return true; }
  std::string device_name(WhichDevice index = std::nullopt) const override;
  c10::Device device(WhichDevice index = std::nullopt) const override;
  std::int64_t device_count() const override { return 1; }
  std::int64_t current_device() const override { return 0; }
  void set_device(std::int64_t index) const override { require("set_device", index); }
  void synchronize(WhichDevice index = std::nullopt) const override { require("synchronize", index); }

  c10::Stream current_stream(WhichDevice index = std::nullopt) const override;
  c10::Stream default_stream(WhichDevice index = std::nullopt) const override;
  c10::Stream new_stream(WhichDevice index = std::nullopt, int priority = 0) const override;
  c10::Stream exchange_stream(c10::Stream stream) const override;

  void empty_cache() const override {}
  std::int64_t memory_allocated(WhichDevice index = std::nullopt) const override;
  std::int64_t max_memory_allocated(WhichDevice index = std::nullopt) const override;
  std::int64_t memory_reserved(WhichDevice index = std::nullopt) const override;
  std::int64_t max_memory_reserved(WhichDevice index = std::nullopt) const override;
  void reset_peak_memory_stats(WhichDevice index = std::nullopt) const override;
  std::map<std::string, std::int64_t> memory_stats(WhichDevice index = std::nullopt) const override;
  /// Of the machine, or of the control group that the process is in.
  std::int64_t total_memory(WhichDevice index = std::nullopt) const override;
  std::int64_t available_memory(WhichDevice index = std::nullopt) const override;

  /// Whether oneDNN computes in float16 on this processor; elsewhere float16 is only emulated.
  bool is_fp16_supported() const override;
  /// Nothing hides a CPU; but DeepSpeed's launcher takes the first name of this list without looking.
  std::vector<std::string> visible_devices_envs() const override { return {"CUDA_VISIBLE_DEVICES"}; }

 private:
  /// Once the index is one of a device.
  const HostMemory& memory(std::string_view function, WhichDevice index) const;

  HostMemory memory_;
};

}  // namespace octavo
