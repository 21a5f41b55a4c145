// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"
#include "octavo/optim/step.h"

namespace octavo {

class Flat;

/// The defaults are those of octavo.optim.AdamW; octavo.optim.Adam has no weight decay. Steps throw Error
/// invalid_argument unless all are finite and as said here.
struct AdamWOptions {
  double lr = 1e-3;            // any: a schedule may end a rounding error below 0
  double beta1 = 0.9;          // at least 0, below 1
  double beta2 = 0.999;        // the same
  double eps = 1e-8;           // at least 0
  double weight_decay = 1e-2;  // the same
};

/// Makes one step of Adam for all parameters, in place; AdamW is its form with decoupled weight decay. `steps` has the
/// step of each parameter, counted from 1. Throws as require_valid does, before any parameter has changed.
OCTAVO_API void adam_(const StepTensors& tensors, at::IntArrayRef steps, const AdamWOptions& options,
                      bool is_decay_decoupled);

/// Throws Error invalid_argument, in the name of `where`, for options that AdamWOptions does not allow.
void require_valid(const AdamWOptions& options, const char* where);

/// Makes one step of AdamW, in place, in one pass. All tensors have one shape and are float32; `parameter` and
/// `gradient` may be of another floating dtype and are then converted. `step` counts from 1. Elements with a gradient
/// that is not finite, or has no finite square, stay as they are. Throws Error invalid_argument for other tensors or
/// options.
OCTAVO_API void adamw_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
                       const AdamWOptions& options, std::int64_t step);
/// Makes the same step in memory that is flat already and in one order. The square may have made fewer steps than the
/// mean: `square_step`, counted from 1. It allocates nothing.
void adamw_flat(Flat& parameter, Flat& gradient, Flat& mean, Flat& square, const AdamWOptions& options,
                std::int64_t step, std::int64_t square_step);

/// Freezes the variance of 1-bit Adam: turns `square` into the preconditioner of all later steps. That is the
/// reciprocal of max(sqrt(square / (1 - beta2^step)), floor * its mean over each 256 elements) + eps. A block that
/// never had a gradient (rows of rare tokens) takes the mean over the tensor: without a floor, its first gradient would
/// be divided by eps. Throws Error invalid_argument for another tensor, before it has changed.
OCTAVO_API void freeze_variance_(at::Tensor& square, double beta2, double eps, double floor, std::int64_t step);

/// What freeze_variance_ needs besides the variance: memory for one at a time, all on one device. A step reserves it
/// before it changes anything.
class FreezeRoom {
 public:
  void reserve(const at::Tensor& square);
  /// Freezes a square that room was reserved for. It allocates nothing.
  void freeze(const at::Tensor& square, double beta2, double eps, double floor, std::int64_t step);

 private:
  double mean_of_blocks(const at::Tensor& means, std::int64_t count);
  void freeze_rows(const at::Tensor& rows, double beta2, double eps, double floor, std::int64_t step);

  at::Tensor rows_;                 // for a square that is not row-major
  at::Tensor last_;                 // one block, for the last elements, where they are fewer
  at::Tensor means_, is_positive_;  // by block
  at::Tensor host_means_;           // on the CPU, for a square on a device
  at::Tensor mean_;                 // over all elements
};

/// Makes one step with a frozen variance. `update` is the preconditioned momentum, averaged over ranks; `mean` becomes
/// a copy of it. The parameter loses `decay` (lr times weight decay) of itself and `step_size` times the update. Shapes
/// and dtypes are as in adamw_.
OCTAVO_API void frozen_adamw_(at::Tensor& parameter, const at::Tensor& update, at::Tensor& mean, double step_size,
                              double decay);

}  // namespace octavo
