// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The reduce-scatter of the wire's back end, of gradients as they are, in their own dtype, in host memory. The bucket
/// has W equal parts; each rank gets the sum of one part, divided, in its place. Their powers, a double each, are sent
/// beside them. Outcome::finite is about this rank's own part.
class ReduceScatterSum final : public Schedule {
 public:
  /// `device`: where the gradients lie.
  ReduceScatterSum(Wire& wire, PhaseSeconds& seconds, c10::Device device)
      : wire_(wire), seconds_(seconds), device_(device) {}

  int transfers() const override { return 1; }
  void begin(Bucket bucket) override;
  Outcome finish() override;

 private:
  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  Bucket bucket_;
  at::Tensor on_host_;       // the gradients, or their copy where they are on a device
  at::Tensor sum_;           // of this rank's part, on the host
  at::Tensor powers_;        // float64
  at::Tensor chunk_powers_;  // scratch
  std::vector<Transfer> transfers_;
};

}  // namespace octavo
