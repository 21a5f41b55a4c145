// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/host_alias.h"

#include "octavo/device/dispatch.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/device/sycl/twins.h"
#include "octavo/kernels/error.h"

namespace octavo {

bool has_host_alias(c10::Device device) { return device.is_cpu() || is_sycl(device); }

at::Tensor host_alias(const at::Tensor& tensor) {
  if (!has_host_alias(tensor.device())) {
    fail(ErrorCode::unsupported, "device.host_alias", "expected a tensor on cpu or sycl, got one on ",
         tensor.device().str());
  }
  if (tensor.is_cpu()) return tensor;
  if (tensor.layout() != at::kStrided) {  // the tensor would not see what is written to an alias of another layout
    fail(ErrorCode::unsupported, "device.host_alias",
         "the host reads only strided tensors on sycl; this one has layout ", c10::str(tensor.layout()),
         ": make it dense with .to_dense()");
  }
  return sycl_device::Twins(tensor.device().index()).twin_of(tensor);
}

at::Tensor where_kernels_run(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  if (!is_sycl(device) || tensor.layout() != at::kStrided) return tensor;
  if (!sycl_device::kernels_run_on_host()) return tensor;
  wait_for_current_stream(device);
  return host_alias(tensor);
}

}  // namespace octavo
