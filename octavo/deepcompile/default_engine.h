// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/symmetric.h"
#include "octavo/export.h"

/// The functions and variables of DeepSpeed's deepcompile.h. They are those of one engine of the process, the default
/// engine. Each function does what the engine's function of the same name does, and refuses what that refuses. Programs
/// with more than one model make engines of their own. A tensor argument that the engine's function lacks only fixes
/// the order of a graph. Not thread-safe.
namespace octavo::dc {

OCTAVO_API Engine& default_engine();

// ---- its parts: the same objects, whether the engine has a model or not

OCTAVO_API extern c10::intrusive_ptr<c10d::ProcessGroup>& process_group;
OCTAVO_API extern std::shared_ptr<DSParamRegistry>& param_registry;
OCTAVO_API extern std::shared_ptr<DoubleBufferedReduceBucket>& reduce_buckets;
OCTAVO_API extern std::unordered_map<long, std::shared_ptr<CustomOpExecutor>>& executors;
OCTAVO_API extern SymmetricMemoryPtr& symm_mem;

// ---- its flags: Flags, and Engine::use_symm_mem

OCTAVO_API extern bool& use_symm_mem;

OCTAVO_API extern bool& profile;
OCTAVO_API extern bool& pre_div_reduce;
OCTAVO_API extern std::int64_t& free_activation_threshold;  // in bytes
OCTAVO_API extern bool &sync_before_reduce, &sync_after_reduce;
OCTAVO_API extern bool &sync_before_allgather, &sync_after_allgather;
OCTAVO_API extern bool& offload_activation_pin_memory;

inline void enable_profiling(bool enable) { profile = enable; }
inline bool is_profiling() { return profile; }

// ---- its beginning and its end

/// `config` includes the flags, which are set to what it says. `bucket_size` is in elements. Throws Error unsupported
/// for a process group without a backend for memory of the CPU, which ranks need to exchange messages.
OCTAVO_API void init(c10::intrusive_ptr<c10d::ProcessGroup> group, EngineOptions config, std::int64_t bucket_size);
inline void reset() { default_engine().reset(); }
inline void cleanup() { default_engine().cleanup(); }

// ---- registration

inline void register_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                           at::Tensor grad_buffer, std::int64_t offset) {
  default_engine().register_param(ds_id, ds_shape, std::move(ds_tensor), std::move(grad_buffer), offset);
}
inline void register_z3_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                              at::Tensor grad_buffer, bool persistent) {
  default_engine().register_z3_param(ds_id, ds_shape, std::move(ds_tensor), std::move(grad_buffer), persistent);
}
inline void update_param_grad_buffer(long ds_id, at::Tensor grad_buffer) {
  default_engine().update_param_grad_buffer(ds_id, std::move(grad_buffer));
}
inline void set_persistent(long ds_id, bool is_persistent = true) {
  default_engine().set_persistent(ds_id, is_persistent);
}
inline void register_graph_z1(long graph_id, const std::vector<long>& ds_ids) {
  default_engine().register_graph_z1(graph_id, ds_ids);
}
inline void register_graph_z2(long graph_id, const std::vector<long>& ds_ids) {
  default_engine().register_graph_z2(graph_id, ds_ids);
}
inline void register_graph_z3(long graph_id, const std::vector<long>& ds_ids) {
  default_engine().register_graph_z3(graph_id, ds_ids);
}

// ---- a step

inline void start_forward() { default_engine().start_forward(); }
inline void end_forward() { default_engine().end_forward(); }
inline void start_backward(bool update) { default_engine().start_backward(update); }
inline void end_backward(const c10::IValue&, long graph_id, bool release_reduce_buckets) {
  default_engine().end_backward(graph_id, release_reduce_buckets);
}
inline at::Tensor reduce_grad(at::Tensor grad_tensor, long graph_id, long ds_id) {
  return default_engine().reduce_grad(std::move(grad_tensor), graph_id, ds_id);
}
inline void free_tensors(std::vector<at::Tensor> tensors) { default_engine().free_tensors(tensors); }

// ---- whole parameters

inline at::Tensor allgather_param(at::Tensor, long graph_id, long ds_id,
                                  std::optional<at::ScalarType> dtype = std::nullopt) {
  return default_engine().allgather_param(graph_id, ds_id, dtype);
}
inline void prefetch_params_fused(long graph_id, const std::vector<at::Tensor>&, const std::vector<long>& ds_ids,
                                  const std::optional<std::vector<at::ScalarType>>& dtypes = std::nullopt) {
  default_engine().prefetch_params_fused(graph_id, ds_ids, dtypes.value_or(std::vector<at::ScalarType>()));
}
inline at::Tensor wait_allgather(at::Tensor v, long graph_id, long ds_id) {
  return default_engine().wait_allgather(std::move(v), graph_id, ds_id);
}
inline at::Tensor release_param(at::Tensor v, long graph_id, long ds_id, long n_users) {
  default_engine().release_param(graph_id, ds_id, n_users);
  return v;
}
inline void invalidate_gathered_param(long ds_id) { default_engine().invalidate_gathered_param(ds_id); }
inline void clear_all_gathered_params() { default_engine().clear_all_gathered_params(); }

// ---- memory

inline SymmetricMemoryPtr getSymmMemWorkspace(std::int64_t size) { return default_engine().getSymmMemWorkspace(size); }
inline void lazy_init_symm_memory() { default_engine().lazy_init_symm_memory(); }

inline at::Tensor offload_tensor(at::Tensor tensor, long graph_id, long id) {
  return default_engine().offload_tensor(std::move(tensor), graph_id, id);
}
inline at::Tensor reload_tensor(at::Tensor tensor, long graph_id, long id) {
  return default_engine().reload_tensor(std::move(tensor), graph_id, id);
}
inline at::Tensor wait_offload(at::Tensor tensor, long graph_id, long id) {
  return default_engine().wait_offload(std::move(tensor), graph_id, id);
}
inline at::Tensor wait_reload(at::Tensor tensor, long graph_id, long id) {
  return default_engine().wait_reload(std::move(tensor), graph_id, id);
}
inline void offload_parameter(at::Tensor, long graph_id, long ds_id) {
  default_engine().offload_parameter(graph_id, ds_id);
}
inline void reload_parameter(at::Tensor, long graph_id, long ds_id) {
  default_engine().reload_parameter(graph_id, ds_id);
}

/// Returns a copy: shows that functions and operators are there.
OCTAVO_API at::Tensor test_call(at::Tensor a);

}  // namespace octavo::dc
