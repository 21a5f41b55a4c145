// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The all-reduce of the wire's back end, of gradients as they are, in their own dtype, in host memory. Their powers, a
/// double each, are sent beside them. Sparse gradients are added up by sum_of_sparse, for which begin() waits.
class AllReduceSum final : public Schedule {
 public:
  /// `device`: where the gradients lie.
  AllReduceSum(Wire& wire, PhaseSeconds& seconds, c10::Device device)
      : wire_(wire), seconds_(seconds), device_(device) {}

  int transfers() const override { return 1; }
  void begin(Bucket bucket) override;
  Outcome finish() override;

 private:
  Outcome outcome() const;

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  Bucket bucket_;
  at::Tensor on_host_;       // the gradients, or their copy where they are on a device
  at::Tensor powers_;        // float64; undefined for a sparse bucket
  at::Tensor chunk_powers_;  // scratch
  std::vector<Transfer> transfers_;
};

}  // namespace octavo
