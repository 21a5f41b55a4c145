// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

/// The way of the host into memory of the device that it cannot read: through page-locked memory, by the device's
/// current stream.
namespace octavo::sycl_device {

/// An uninitialized CPU tensor in page-locked memory with a tensor's dtype, sizes, strides and flags; its storage
/// covers what lies from the tensor's first element to its last.
at::Tensor staging_for(const at::Tensor& tensor);

/// The same with the tensor's bytes, those between its elements too. Returns when they are there.
at::Tensor download(const at::Tensor& tensor);

/// The way back, of the whole storage of `staged`: what was written between the tensor's elements since its download is
/// overwritten. Returns when it is done.
void upload(const at::Tensor& staged, const at::Tensor& tensor);

}  // namespace octavo::sycl_device
