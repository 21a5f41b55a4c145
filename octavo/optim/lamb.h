// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

namespace octavo {

/// The defaults are those of octavo.optim.OneBitLamb; the limits of the first five are those of AdamWOptions.
struct LambOptions {
  double lr = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  double least_coefficient = 0.01;  // bounds of the coefficient of lr
  double greatest_coefficient = 10;
};

/// Makes one step of LAMB (You et al. 2020) for all parameters, in place: each moves by lr times its coefficient along
/// Adam's direction, weight decay included. The coefficient of a tensor is its norm over the direction's norm, within
/// the bounds; it is 1 where either is 0, as for an empty tensor. The coefficients are written to `coefficients`,
/// float64[parameters] on the CPU. The device is waited for a few times, not for each tensor. An element whose
/// gradient is not finite keeps its moments, and moves along them.
///
/// The lists are of one length. Means and squares are float32, a parameter and its gradient are of any floating dtype,
/// and all four are of one shape. All parameters are on one device. `steps` has the step of each parameter, counted
/// from 1. Throws Error invalid_argument otherwise. Where it throws, also because memory ran out, nothing has changed.
OCTAVO_API void lamb_(at::TensorList parameters, at::TensorList gradients, at::TensorList means, at::TensorList squares,
                      at::IntArrayRef steps, at::Tensor& coefficients, const LambOptions& options);

}  // namespace octavo
