// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"
#include "octavo/optim/step.h"
#include "octavo/rules/lion.h"

namespace octavo {

/// The defaults are those of octavo.optim.Lion. Steps throw Error invalid_argument unless all are finite, the betas at
/// least 0 and below 1, and the weight decay at least 0.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;   // of the update whose sign is the step
  double beta2 = 0.99;  // of the momentum that is kept
  double weight_decay = 0;
};

/// Returns the mix of both betas for gradients that are `gradient_scale` times the true ones.
OCTAVO_API rules::MomentumMix momentum_mix(double update_beta, double kept_beta, double gradient_scale = 1.0);

/// Makes one step of Lion for all parameters, in place; their state is the momentum. Throws as require_valid does,
/// before any parameter has changed.
OCTAVO_API void lion_(const StepTensors& tensors, const LionOptions& options);

/// Makes the step of Lion from updates that exist already: every parameter loses lr*weight_decay of itself and lr times
/// the sign of its update. The lists are of one length, an update has its parameter's shape, and all are of a floating
/// dtype. Throws Error invalid_argument otherwise, before any parameter has changed.
OCTAVO_API void sign_step_(at::TensorList parameters, at::TensorList updates, double lr, double weight_decay);

/// Applies rules::mix_momentum to `count` elements in memory of `device`: gradients in `values` become updates, and
/// `next` becomes the momentum that is kept. Enqueued on the device's current stream; on the CPU done by all threads.
OCTAVO_API void mix_momentum(c10::Device device, const rules::MomentumMix& mix, std::uint64_t count, float* values,
                             const float* momentum, float* next);

}  // namespace octavo
