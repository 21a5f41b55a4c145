// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

/// How large a gradient is: its mean square. A tensor of power 0 is not sent, so it is 0 for zeros alone.
namespace octavo {

/// The power of one rank's gradient. An estimate for large tensors, from a 32nd of their elements.
float gradient_power(const float* values, std::uint64_t count);

/// Over all ranks, in double and in the order given: 0 only where all are.
float mean_power(std::span<const float> powers);

}  // namespace octavo
