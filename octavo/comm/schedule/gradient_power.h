// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "octavo/comm/contribution.h"

/// How large gradients are: their mean squares. A tensor of power 0 is not sent, so only zeros have power 0.
namespace octavo {

/// Returns the powers of one rank's gradients, by tensor. It waits for what the device's current stream was given
/// before. For large tensors the power is an estimate from a 32nd of their elements, unless their memory needs all.
/// `buffer` keeps memory for the next call.
std::vector<float> gradient_powers(std::span<const Contribution> tensors, c10::Device device, at::Tensor& buffer);

/// Returns the powers of one rank as float64, to be added up over ranks by an all-reduce. mean_powers() divides the
/// sums.
at::Tensor summands(std::span<const float> powers);
std::vector<float> mean_powers(const at::Tensor& sums, int world_size);

/// Returns the mean over all ranks, formed in double and in the order given; it is 0 only where all powers are.
float mean_power(std::span<const float> powers);

}  // namespace octavo
