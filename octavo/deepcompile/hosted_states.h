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

/// What an optimizer keeps of each parameter. Only its step needs it, so it can lie on the host between steps. The
/// tensors stay the optimizer's own, as HostedTensor says. Not thread-safe.
class OCTAVO_API HostedStates {
 public:
  /// Replaces what was known of the parameter. A state that is away and is not given again is lost.
  void set(long ds_id, std::vector<at::Tensor> states);
  /// Move the parameter's states; do nothing where none are known.
  void offload(long ds_id);
  void reload(long ds_id);
  /// Waits, on the calling thread, until all that was sent is on the host and the device's memory can be used again.
  void wait_offloads() const;
  /// Brings back what is away. What the device's current stream gets from now on waits for it, and may change it.
  void restore();

  /// The bytes of the device's memory that are given up now.
  std::int64_t away_bytes() const;

 private:
  std::unordered_map<long, std::vector<HostedTensor>> states_;
  SideStreams offload_streams_, reload_streams_;
};

}  // namespace octavo::dc
