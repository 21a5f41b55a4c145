// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/export.h"
#include "octavo/optim/adamw.h"
#include "octavo/rules/zero_one_adam.h"

namespace octavo {

/// When 0/1 Adam sends what, all in steps. The variance is learnt at intervals that double after every
/// `updates_an_interval` updates, until `variance_steps` are made. From then on parameters are sent at intervals that
/// begin with 1 and double after every `steps_an_interval`, up to `longest_interval`. All are at least 1. Two depend on
/// the run's length and must be given; the defaults of the others are those of octavo.optim.ZeroOneAdam.
struct ZeroOneSchedule {
  std::uint64_t variance_steps = 0;
  std::uint64_t updates_an_interval = 16;
  std::uint64_t steps_an_interval = 0;
  std::uint64_t longest_interval = 16;
};

enum class ZeroOneKind {
  variance,  // gradients are averaged, and the variance learns from them
  sync,      // updates since the last sync are averaged
  local,     // nothing is sent
};

/// Returns the kind of the step after `done` steps: a pure function. The gap between two syncs is at most the current
/// interval.
OCTAVO_API ZeroOneKind zero_one_kind(std::uint64_t done, const ZeroOneSchedule& schedule);

/// Returns the step for gradients that are `gradient_scale` times the true ones.
OCTAVO_API rules::ZeroOneStep zero_one_step(double beta, double step_size, double gradient_scale = 1.0);

/// Makes a step of all parameters by averaged gradients: AdamW, whose variances make new preconditioners. Momenta are
/// preconditioned, before and after. The lists are of one length. States are float32 of the parameter's shape. `steps`
/// counts the steps of each momentum from 1, `updates` those of each variance; the first update reads no preconditioner
/// and no momentum. `lrs` and `weight_decays` have one for each parameter, and replace those of the options. `floor`:
/// of the preconditioner, as in freeze_variance_. Throws Error invalid_argument otherwise. Where it throws, also
/// because memory ran out, nothing has changed.
OCTAVO_API void zero_one_variance_(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta,
                                   at::TensorList squares, at::TensorList preconditioners, at::IntArrayRef steps,
                                   at::IntArrayRef updates, at::ArrayRef<double> lrs,
                                   at::ArrayRef<double> weight_decays, const AdamWOptions& options, double floor);

/// Makes one step of all parameters that is not sent to other ranks (rules::zero_one_local). The lists are of one
/// length, and each parameter's tensors are of one shape. Preconditioners, momenta and updates are float32; gradients
/// and anchors are of any floating dtype. `step_sizes` has one for each parameter. Throws Error invalid_argument
/// otherwise. Where it throws, also because memory ran out, no parameter has changed.
OCTAVO_API void zero_one_local_(at::TensorList parameters, at::TensorList gradients, at::TensorList preconditioners,
                                at::TensorList anchors, at::TensorList momenta, at::TensorList updates, double beta,
                                const std::vector<double>& step_sizes);

/// Makes the step of all parameters that follows an exchange (rules::zero_one_sync). `updates` are the averages, and
/// become zeros. `anchors` are as above; a parameter without a local step since the last sync is its own anchor. For
/// each parameter `decays` has what weight decay leaves, and `totals` the sum of step sizes. Throws as above.
OCTAVO_API void zero_one_sync_(at::TensorList parameters, at::TensorList anchors, at::TensorList momenta,
                               at::TensorList updates, const std::vector<double>& decays,
                               const std::vector<double>& totals);

/// Applies rules::zero_one_sent to `count` elements in memory of `device` and writes the results in place of the
/// gradients. Enqueued on the device's current stream; on the CPU done by all threads.
OCTAVO_API void zero_one_send(c10::Device device, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                              const float* preconditioner, const float* momentum, const float* update);

}  // namespace octavo
