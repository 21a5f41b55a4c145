// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/empty_of_kind.h"

#include <ATen/EmptyTensor.h>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/devices.h"

namespace octavo::sycl_device {

at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device) {
  const c10::Device on(kType, require_device(device));
  at::detail::check_size_nonnegative(sizes);
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocate(on.index(), kind, bytes, on), &allocator(),
                       /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace octavo::sycl_device
