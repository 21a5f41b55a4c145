// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/gather_codes.h"
#include "octavo/comm/schedule/scatter_sum.h"
#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// The two-phase all-reduce of compressed values: ScatterSum, then GatherCodes.
///
/// The results have the same bits on all ranks. Traffic is 2(W-1)/W of the payload, whatever W. Where a codec packs,
/// each half takes two transfers, the first of which is small. A tensor whose gradient is zero on every rank is not
/// decoded (DDP drops the result of an unused parameter, and a residual sent with it would be lost): its result is its
/// decayed momentum, and its residuals must be rolled back.
class OCTAVO_API TwoPhase final : public Schedule {
 public:
  /// `device`: where the contributions lie.
  TwoPhase(Wire& wire, PhaseSeconds& seconds, c10::Device device = c10::kCPU)
      : wire_(wire), seconds_(seconds), device_(device), up_(wire, device), down_(wire, device) {}

  int transfers() const override { return up_.transfers() + down_transfers_; }
  void begin(Bucket bucket) override;
  void advance() override;
  Outcome finish() override;

  /// Makes the result of a tensor that need not be sent, in its place. `divisor`: Bucket::divisor. `nonfinite`: as in
  /// Codec::decode.
  void keep_here(const Contribution& tensor, double divisor, std::uint32_t* nonfinite);

 private:
  std::vector<PackedFigures> packed() const;

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  Bucket bucket_;
  ScatterSum up_;
  GatherCodes down_;
  int begun_ = 0;  // transfers
  int down_transfers_ = 1;
  at::Tensor nonfinite_;  // one word, on the host
  at::Tensor exact_;      // float32, of a part
};

}  // namespace octavo
