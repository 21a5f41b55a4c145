// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// Whether all values of a dense or sparse tensor are finite. It waits for what the device's current stream was given
/// before.
bool all_finite(const at::Tensor& tensor);

}  // namespace octavo
