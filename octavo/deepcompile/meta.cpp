// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/meta.h"

#include <ATen/ATen.h>

namespace octavo::dc {

at::Tensor allgather_param_meta(at::Tensor param_tensor, long, long, std::optional<at::ScalarType> dtype) {
  const at::ScalarType wanted = dtype.value_or(param_tensor.scalar_type());
  return at::empty_symint(param_tensor.sym_sizes(), param_tensor.options().dtype(wanted));
}

at::Tensor reduce_grad_meta(at::Tensor grad_tensor, long, long) { return at::empty({0}, grad_tensor.options()); }

at::Tensor offload_tensor_meta(at::Tensor tensor, long, long) { return at::empty_like(tensor); }

}  // namespace octavo::dc
