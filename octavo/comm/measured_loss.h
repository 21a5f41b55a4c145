// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// How far the result of one tensor is from the exact mean (or sum, as the divisor has it) of what the ranks
/// contributed, in one step. A figure is missing where it is not defined, because a mean or a result is zero or not
/// finite.
struct MeasuredLoss {
  std::optional<float> relative_error;  // |result - mean| / |mean|, of Euclidean norms
  std::optional<float> cosine;          // of the angle between the two
};

/// What this rank contributes to a bucket, kept until the bucket's results are there to be compared with the exact
/// mean: gradients (or momenta) in unscaled units, without what error feedback adds to them.
class ContributedBucket {
 public:
  /// Copies the contributions, which lie at `values`.
  ContributedBucket(const at::Tensor& values, std::span<const Contribution> tensors, const Wire& wire);

  /// Adds up the contributions of all ranks, in float32, by the wire's all-reduce, and compares the sums with the
  /// results, which lie where the contributions were. All ranks must call it together. Returns the losses by tensor.
  /// Where owners keep the sums, this rank's part of the tensor is compared. Throws what Wire throws.
  std::vector<MeasuredLoss> compare(Wire& wire, double divisor, const at::Tensor& results);

 private:
  at::Tensor contributions_;    // float32, on the host
  std::vector<Range> results_;  // where the results of each tensor lie
};

}  // namespace octavo
