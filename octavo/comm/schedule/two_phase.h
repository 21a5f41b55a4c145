// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "octavo/codec/format.h"
#include "octavo/comm/feedback/residual.h"
#include "octavo/comm/layout.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// One tensor of a bucket, on this rank, which sends gradient_weight*gradient + momentum_weight*momentum.
struct Contribution {
  float* values;  // float32[count] on CPU; in: the gradient, out: the result
  std::uint64_t count;
  Format up, down;
  const float* momentum = nullptr;  // float32[count], equal on all ranks; null: none
  float gradient_weight = 1.0F;
  float momentum_weight = 0.0F;
  Residual* worker = nullptr;  // what this rank could not send; null: no feedback
  Residual* owner = nullptr;   // what it could not send of the range that it owns
};

struct Outcome {
  bool finite;                // every result is finite; the same on all ranks
  std::vector<bool> present;  // by tensor: some rank had a gradient other than zero; the same on all ranks
};

/// The two-phase all-reduce of compressed values: each rank sends every owner the codes of its range (all-to-all); the
/// owner decodes them in rank order, adds in float32, and encodes the sum; all ranks receive all sums.
///
/// The owner decodes its own bytes like everyone else's, so that the results have the same bits on all ranks. Traffic
/// is 2(W-1)/W of the payload, whatever W. A tensor whose gradient is zero on every rank is not sent (DDP drops the
/// result of an unused parameter, and a residual sent with it would be lost): its result is its decayed momentum, and
/// its residuals must be rolled back. Both phases are all-to-alls: Gloo's all-gather takes several times as long.
/// Not thread-safe: one call at a time, in the same order on all ranks.
class OCTAVO_API TwoPhase {
 public:
  explicit TwoPhase(Wire& wire) : wire_(wire) {}

  /// The sum over ranks times `result_weight` (1/W for an average). Residuals are written but neither committed nor
  /// rolled back. Throws what Wire throws; `values` are then undefined.
  Outcome reduce(std::span<Contribution> tensors, float result_weight);

 private:
  void encode_all(std::span<Contribution> tensors);
  void send_up();
  std::vector<bool> merge_presence(std::size_t tensors) const;
  void reduce_own(std::span<Contribution> tensors, float result_weight);
  void send_down();
  bool decode_all(std::span<Contribution> tensors, const std::vector<bool>& present);

  Wire& wire_;
  std::vector<Message> up_, down_;                // by owner
  at::Tensor sent_up_, got_up_, sent_down_, got_down_;  // uint8, kept between calls
  at::Tensor sum_;                                // float32, the largest own range
};

}  // namespace octavo
