// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

/// States of fused steps (step.h) from floats to codes and back by rules/state_codes.h, as the steps themselves do it:
/// for checkpoints, which may hold another format than the optimizer that loads them. Any thread may call them; states
/// of a device are converted on the CPU.
namespace octavo {

/// What a state's codes are: of 8 or 4 bits; of a momentum, or of a variance, which has no sign.
struct StateCode {
  int bits;
  bool is_signed;
};

/// Writes `values`, floats of any shape whose row-major order counts, to `codes`, uint8 for all of them, and `scales`,
/// float32 with an element for each block. Values are finite. Throws Error invalid_argument for what is not so.
OCTAVO_API void encode_state_(const at::Tensor& values, at::Tensor& codes, at::Tensor& scales, StateCode code);

/// The `count` values of codes: float32[count] on their device. Throws as encode_state_ does.
OCTAVO_API at::Tensor decode_state(const at::Tensor& codes, const at::Tensor& scales, std::int64_t count,
                                   StateCode code);

}  // namespace octavo
