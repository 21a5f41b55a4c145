// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The sum that the wire's own back end makes of gradients as they are, in their own dtype, in host memory. Their
/// powers, a double each, are sent beside them.
///
/// It is an all-reduce, or a reduce-scatter where owners keep the sums: the bucket then has W equal parts, each rank
/// gets the sum of one part, divided, in its place, and Outcome::finite is about this part. An all-reduce takes sparse
/// gradients, too, which are added up by sum_of_sparse, for which begin() waits.
class DenseSum final : public Schedule {
 public:
  /// `device`: where the gradients lie.
  DenseSum(Wire& wire, PhaseSeconds& seconds, c10::Device device, bool owners_keep_sums)
      : wire_(wire), seconds_(seconds), device_(device), owners_keep_sums_(owners_keep_sums) {}

  int transfers() const override { return 1; }
  void begin(Bucket bucket) override;
  Outcome finish() override;

 private:
  void start_all_reduce(Stopwatch& watch);
  void start_reduce_scatter();
  void deliver() const;

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  bool owners_keep_sums_;
  Bucket bucket_;
  at::Tensor whole_;         // what is reduced and scattered: the gradients, or their copy where they are on a device
  at::Tensor sum_;           // on the host; undefined where one rank makes an all-reduce
  at::Tensor powers_;        // float64
  at::Tensor chunk_powers_;  // scratch
  std::vector<Transfer> transfers_;
};

}  // namespace octavo
