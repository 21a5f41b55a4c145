// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// Whether all values of a dense or sparse tensor of real numbers are finite. It waits for what the device's current
/// stream was given before. Throws c10::Error for a dtype that torch does not order, such as complex and float8.
bool all_finite(const at::Tensor& tensor);
/// The same of several dense tensors on one device, of one dtype. It waits once for all of them.
bool all_finite(at::TensorList tensors);

}  // namespace octavo
