// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

/// Converts states of fused steps (step.h) from floats to codes and back by rules/state_codes.h, as the steps
/// themselves do. This is for checkpoints, which may hold another format than the optimizer that loads them. Any thread
/// may call these functions. States of a device are converted on the CPU.
namespace octavo {

/// The kind of a state's codes: of 8 or 4 bits; of a momentum, or of a variance, which has no sign.
struct StateCode {
  int bits;
  bool is_signed;
};

/// Writes `values`, floats of any shape taken in row-major order, to `codes`, uint8 for all of them, and `scales`,
/// float32 with an element for each block. Values must be finite; this is not checked. Throws Error invalid_argument
/// where another of these conditions does not hold.
OCTAVO_API void encode_state_(const at::Tensor& values, at::Tensor& codes, at::Tensor& scales, StateCode code);

/// Returns the `count` values of codes as float32[count] on the device of the codes. Throws as encode_state_ does.
OCTAVO_API at::Tensor decode_state(const at::Tensor& codes, const at::Tensor& scales, std::int64_t count,
                                   StateCode code);

}  // namespace octavo
