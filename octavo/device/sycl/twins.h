// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "octavo/device/sycl/twin_storages.h"

namespace octavo::sycl_device {

/// The tensors of one call, strided or sparse COO, as CPU tensors over the same memory, and the way back. Tensors that
/// share a storage on the device share one here; nothing is copied. Made for one call on one thread; the caller has
/// settled the device.
class Twins {
 public:
  explicit Twins(c10::DeviceIndex device) : storages_(device) {}

  /// A CPU tensor over the memory of a tensor of the device, the same for the same tensor; holds its memory.
  at::Tensor twin_of(const at::Tensor& original);

  /// The tensor of the device that a CPU kernel means by `result`: the original of a twin, a view of an original's
  /// storage, or the result itself where it lies in device memory (OnDeviceMemory); what lies elsewhere is copied.
  at::Tensor original_of(const at::Tensor& result);

  /// After a kernel that writes to the original's twin: takes over new sizes, strides, memory and storage.
  void update(const at::Tensor& original);

 private:
  struct SharedTensor {
    at::Tensor original, twin;
  };
  at::Tensor strided_twin(const at::Tensor& original);
  at::Tensor strided_original(const at::Tensor& result);
  at::Tensor sparse_twin(const at::Tensor& original);
  at::Tensor sparse_original(const at::Tensor& result);
  void update_strided(const at::Tensor& original, const at::Tensor& twin);
  void update_sparse(const at::Tensor& original, const at::Tensor& twin);

  TwinStorages storages_;
  c10::SmallVector<SharedTensor, 6> tensors_;
};

}  // namespace octavo::sycl_device
