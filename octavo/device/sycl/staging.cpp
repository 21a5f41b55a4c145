// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/staging.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "octavo/device/sycl/pinned.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

void transfer(c10::DeviceIndex device, void* to, const void* from, std::uint64_t bytes) {
  const Queue queue = queue_of(current_stream(device));
  runtime().copy(queue, to, from, bytes);
  runtime().wait(queue);
}

}  // namespace

at::Tensor staging_for(const at::Tensor& tensor) {
  const c10::OptionalDeviceGuard guard(tensor.device());  // whose driver knows the memory as page-locked
  at::Tensor staged =
      at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), &pinned_allocator(),
                                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.scalar_type());
  staged._set_conj(tensor.is_conj());
  staged._set_neg(tensor.is_neg());
  return staged;
}

at::Tensor download(const at::Tensor& tensor) {
  at::Tensor staged = staging_for(tensor);
  transfer(tensor.device().index(), staged.mutable_data_ptr(), tensor.const_data_ptr(), staged.storage().nbytes());
  return staged;
}

void upload(const at::Tensor& staged, const at::Tensor& tensor) {
  transfer(tensor.device().index(), tensor.mutable_data_ptr(), staged.const_data_ptr(), staged.storage().nbytes());
}

}  // namespace octavo::sycl_device
