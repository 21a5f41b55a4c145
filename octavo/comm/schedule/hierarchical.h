// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/gather_shards.h"
#include "octavo/comm/schedule/one_phase.h"
#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/schedule/two_phase.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// The sum over ranks where several ranks share a host. It is exact inside a host and compressed between hosts.
///
///   1     each rank of a host gets the host's mean of the range of every tensor that it owns there (OnePhase)
///   2, 3  the ranks that own the same ranges on all hosts average these by the plan's codecs (TwoPhase)
///   4     each rank of a host sends the result of its ranges to the others (GatherShards)
///
/// Inside a host values are sent in float32, or in bfloat16 where the bucket is bfloat16, which loses nothing of the
/// gradients, nor of results that go into the bucket. The tensors are float32, because they hold the hosts' means. The
/// results have the same bits on all ranks of all hosts. What is remembered of a tensor is that of this rank's range.
/// The mean square of a gradient (Outcome::power) is that over all ranks.
class OCTAVO_API Hierarchical final : public Schedule {
 public:
  /// `host`: the ranks of this rank's host, in the same order on all hosts. `between`: the ranks that have the same
  /// number as this one on their hosts. `device`: where the contributions lie.
  Hierarchical(Wire& host, Wire& between, PhaseSeconds& seconds, c10::Device device);

  int transfers() const override { return transfers_; }
  /// The bucket must be dense, and no tensor may have a Mapping.
  void begin(Bucket bucket) override;
  void advance() override;
  Outcome finish() override;

 private:
  void exchange_between_hosts();
  void gather_in_host();
  Contribution own_range(const Contribution& tensor, float power) const;

  Wire& host_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  OnePhase sums_;
  TwoPhase between_;
  int hosts_;
  GatherShards results_;
  Bucket bucket_;
  std::vector<Contribution> gathered_;  // the bucket's tensors as they are sent inside the host
  Outcome outcome_;                     // of the exchange between hosts
  int transfers_ = 0;                   // of the bucket
  int begun_ = 0;                       // transfers between hosts
  at::Tensor nonfinite_;                // one word, on the host
};

}  // namespace octavo
