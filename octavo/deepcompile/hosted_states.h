// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/hosted_tensor.h"
#include "octavo/device/side_streams.h"
#include "octavo/export.h"

namespace octavo::dc {

/// What an optimizer keeps of each parameter, and needs in its step alone: it can wait on the host meanwhile. Tensors
/// stay the optimizer's own, as HostedTensor says. Not thread-safe.
class OCTAVO_API HostedStates {
 public:
  /// In place of what was known of the parameter before. A state that is away and is not given again is lost.
  void set(long ds_id, std::vector<at::Tensor> states);
  /// Nothing for a parameter of which nothing is known.
  void offload(long ds_id);
  void reload(long ds_id);
  /// The thread waits until all that was sent is on the host, and the device's memory can be used again.
  void waitOffloads() const;
  /// Brings back what is away. What the device's current stream gets from now on waits for it, and may change it.
  void restore();

  /// Of the device, that are given up now.
  std::int64_t awayBytes() const;

 private:
  std::unordered_map<long, std::vector<HostedTensor>> states_;
  SideStreams offload_streams_, reload_streams_;
};

}  // namespace octavo::dc
