// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// Whether all values of a dense or sparse tensor are finite. It waits for what the device's current stream was given
/// before.
bool all_finite(const at::Tensor& tensor);
/// The same of several dense tensors on one device, of one dtype. It waits once for all of them.
bool all_finite(at::TensorList tensors);

}  // namespace octavo
