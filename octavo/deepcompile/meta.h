// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "octavo/export.h"

/// What the functions of default_engine.h return for tensors without memory, as torch.compile traces them: tensors of
/// the same shape and dtype. None has an effect.
namespace octavo::dc {

/// `param_tensor` is the whole parameter as it was traced.
OCTAVO_API at::Tensor allgather_param_meta(at::Tensor param_tensor, long graph_id, long ds_id,
                                           std::optional<at::ScalarType> dtype = std::nullopt);
inline void prefetch_params_fused_meta(long, const std::vector<at::Tensor>&, const std::vector<long>&,
                                       const std::optional<std::vector<at::ScalarType>>& = std::nullopt) {}
inline at::Tensor wait_allgather_meta(at::Tensor v, long, long) { return v; }
inline at::Tensor release_param_meta(at::Tensor v, long, long, long) { return v; }
OCTAVO_API at::Tensor reduce_grad_meta(at::Tensor grad_tensor, long graph_id, long ds_id);
inline void end_backward_meta(const c10::IValue&, long, bool) {}
inline void free_tensors_meta(std::vector<at::Tensor>) {}

/// Serves offload_tensor, reload_tensor, wait_offload and wait_reload.
OCTAVO_API at::Tensor offload_tensor_meta(at::Tensor tensor, long graph_id, long id);
inline at::Tensor reload_tensor_meta(at::Tensor tensor, long graph_id, long id) {
  return offload_tensor_meta(tensor, graph_id, id);
}
inline at::Tensor wait_offload_meta(at::Tensor tensor, long graph_id, long id) {
  return offload_tensor_meta(tensor, graph_id, id);
}
inline at::Tensor wait_reload_meta(at::Tensor tensor, long graph_id, long id) {
  return offload_tensor_meta(tensor, graph_id, id);
}
inline void offload_parameter_meta(at::Tensor, long, long) {}
inline void reload_parameter_meta(at::Tensor, long, long) {}

}  // namespace octavo::dc
