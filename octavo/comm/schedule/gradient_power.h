// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "octavo/comm/schedule/contribution.h"

/// How large gradients are: their mean squares, and whether they are finite. A tensor of power 0 is not sent, so it is
/// 0 for zeros alone.
namespace octavo {

/// The powers of one rank's gradients, by tensor; what the device's current stream was given before is waited for. An
/// estimate for large tensors, from a 32nd of their elements, but for those whose memory needs all. `buffer` keeps
/// memory for the next call.
std::vector<float> gradient_powers(std::span<const Contribution> tensors, c10::Device device, at::Tensor& buffer);

/// The powers of one rank as float64, to be added up over the ranks by an all-reduce, and their means.
at::Tensor summands(std::span<const float> powers);
std::vector<float> mean_powers(const at::Tensor& sums, int world_size);

bool all_finite(const at::Tensor& values);

/// Over all ranks, in double and in the order given: 0 only where all are.
float mean_power(std::span<const float> powers);

}  // namespace octavo
