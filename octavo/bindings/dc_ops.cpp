// SPDX-License-Identifier: Apache-2.0
// torch.ops.dc: what compiled graphs do for ZeRO, under DeepSpeed's names, and operators of Octavo's own. The results
// of the latter belong to the graph, and no pass may drop the operators: Inductor reuses memory after its last reader,
// and leaves out what has neither a result that is used nor a mutation. `graph_id` comes from new_graph_id() of the
// engine.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "octavo/bindings/errors.h"
#include "octavo/bindings/fake.h"
#include "octavo/deepcompile/default_engine.h"
#include "octavo/deepcompile/graph_ids.h"
#include "octavo/deepcompile/meta.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using Dtypes = std::optional<std::vector<at::ScalarType>>;

/// Runs `body` with the graph's engine.
template <class Body>
auto on_graph(long graph_id, Body body) {
  return as_torch_error([&] { return body(dc::engine_of(graph_id)); });
}

// ---- whole parameters

at::Tensor dc_allgather_param(at::Tensor, long graph_id, long id, std::optional<at::ScalarType> dtype) {
  return on_graph(graph_id, [&](dc::Engine& engine) { return engine.allgather_param(graph_id, id, dtype); });
}

void dc_prefetch_params_fused(long graph_id, const std::vector<at::Tensor>&, const std::vector<long>& ids,
                              const Dtypes& dtypes) {
  on_graph(graph_id, [&](dc::Engine& engine) {
    engine.prefetch_params_fused(graph_id, ids, dtypes.value_or(std::vector<at::ScalarType>()));
  });
}

at::Tensor dc_wait_allgather(at::Tensor a, long graph_id, long id) {
  return on_graph(graph_id, [&](dc::Engine& engine) { return engine.wait_allgather(a, graph_id, id); });
}

at::Tensor dc_release_param(at::Tensor a, long graph_id, long id, long n_users) {
  on_graph(graph_id, [&](dc::Engine& engine) { engine.release_param(graph_id, id, n_users); });
  return a;
}

void require_one_each(const char* what, std::size_t count, std::size_t ids) {
  if (count == ids) return;
  fail(ErrorCode::invalid_argument, "dc.allgather_params_fused", "expected a ", what, " for each of ", ids,
       " numbers, got ", count);
}

std::vector<at::Tensor> dc_allgather_params_fused(at::TensorList params, long graph_id, at::IntArrayRef ids,
                                                  const Dtypes& dtypes) {
  return on_graph(graph_id, [&](dc::Engine& engine) {
    require_one_each("traced parameter", params.size(), ids.size());
    return engine.allgather_params_fused(graph_id, ids.vec(), dtypes.value_or(std::vector<at::ScalarType>()));
  });
}

std::vector<at::Tensor> dc_allgather_params_fused_fake(at::TensorList params, long, at::IntArrayRef ids,
                                                       const Dtypes& dtypes) {
  as_torch_error([&] {
    require_one_each("traced parameter", params.size(), ids.size());
    if (dtypes.has_value()) require_one_each("dtype", dtypes->size(), ids.size());
  });
  std::vector<at::Tensor> gathered;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const at::ScalarType dtype = dtypes.has_value() ? (*dtypes)[i] : params[i].scalar_type();
    gathered.push_back(at::empty_symint(params[i].sym_sizes(), params[i].options().dtype(dtype)));
  }
  return gathered;
}

void dc_wait_params(at::TensorList gathered, long graph_id, at::IntArrayRef ids) {
  on_graph(graph_id, [&](dc::Engine& engine) { engine.wait_params(gathered, graph_id, ids.vec()); });
}

// ---- gradients

at::Tensor dc_reduce_grad(at::Tensor a, long graph_id, long id) {
  return on_graph(graph_id, [&](dc::Engine& engine) { return engine.reduce_grad(a, graph_id, id); });
}

void dc_reduce_grads(at::TensorList grads, const at::Tensor&, long graph_id, at::IntArrayRef ids) {
  on_graph(graph_id, [&](dc::Engine& engine) { engine.reduce_grads(grads, graph_id, ids.vec()); });
}

void dc_end_backward(const c10::IValue&, long graph_id, bool release_reduce_buckets) {
  on_graph(graph_id, [&](dc::Engine& engine) { engine.end_backward(graph_id, release_reduce_buckets); });
}

void dc_finish_backward(const at::Tensor&, long graph_id, std::optional<std::int64_t> n_grads) {
  on_graph(graph_id, [&](dc::Engine& engine) {
    n_grads ? engine.finish_backward(graph_id, *n_grads) : engine.end_backward(graph_id);
  });
}

// ---- memory

/// An operator that moves a value of a graph to the host or back.
template <at::Tensor (dc::Engine::*move)(at::Tensor, long, long)>
at::Tensor dc_move(at::Tensor a, long graph_id, long id) {
  return on_graph(graph_id, [&](dc::Engine& engine) { return (engine.*move)(a, graph_id, id); });
}

template <void (dc::Engine::*finish)(at::Tensor, long, long)>
void dc_finish_move(const at::Tensor& a, long graph_id, long id) {
  on_graph(graph_id, [&](dc::Engine& engine) { (engine.*finish)(a, graph_id, id); });
}

template <void (dc::Engine::*move)(long, long)>
void dc_move_param(at::Tensor, long graph_id, long id) {
  on_graph(graph_id, [&](dc::Engine& engine) { (engine.*move)(graph_id, id); });
}

/// An operator that moves what belongs to several parameters, named by their ids, beside what the graph computes.
template <void (dc::Engine::*move)(long, const std::vector<long>&)>
void dc_move_several(const at::Tensor&, long graph_id, at::IntArrayRef ids) {
  on_graph(graph_id, [&](dc::Engine& engine) { (engine.*move)(graph_id, ids.vec()); });
}

void dc_wait_offloads(const at::Tensor&, long graph_id) {
  on_graph(graph_id, [](dc::Engine& engine) { engine.wait_offloads(); });
}

TORCH_LIBRARY(dc, m) {
  const std::vector<at::Tag> compilable = {at::Tag::pt2_compliant_tag};
  m.def("allgather_param(Tensor a, int graph_id, int id, ScalarType? dtype=None) -> Tensor");
  m.def("prefetch_params_fused(int graph_id, Tensor[] params, int[] ids, ScalarType[]? dtypes=None) -> ()");
  m.def("wait_allgather(Tensor(a) a, int graph_id, int id) -> Tensor(a)");
  m.def("release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)");
  m.def("reduce_grad(Tensor a, int graph_id, int id) -> Tensor");
  m.def("free_tensors(Tensor[] a) -> ()");
  m.def("end_backward(Any deps, int graph_id, bool release_reduce_buckets) -> ()");
  m.def("offload_tensor(Tensor a, int graph_id, int id) -> Tensor", compilable);
  m.def("reload_tensor(Tensor a, int graph_id, int id) -> Tensor", compilable);
  m.def("wait_offload(Tensor a, int graph_id, int id) -> Tensor");
  m.def("wait_reload(Tensor a, int graph_id, int id) -> Tensor");
  m.def("offload_parameter(Tensor a, int graph_id, int id) -> ()");
  m.def("reload_parameter(Tensor a, int graph_id, int id) -> ()");
  m.def("test_call(Tensor a) -> Tensor", compilable);

  // Octavo's own operators. `params` are the parameters as they were traced: their shapes count, their memory is never
  // read.
  m.def("allgather_params_fused(Tensor[] params, int graph_id, int[] ids, ScalarType[]? dtypes=None) -> Tensor[]",
        compilable);
  m.def("wait_params(Tensor(a!)[] gathered, int graph_id, int[] ids) -> ()", compilable);
  // `n_grads` is the number of gradients that reduce_grads must have got since the graph's last backward pass. `token`
  // is any tensor. The schema says that the operator changes it, which keeps the operator in its place.
  m.def("reduce_grads(Tensor[] grads, Tensor(a!) token, int graph_id, int[] ids) -> ()", compilable);
  m.def("finish_backward(Tensor(a!) token, int graph_id, int? n_grads=None) -> ()", compilable);
  m.def("finish_offload(Tensor(a!) value, int graph_id, int id) -> ()", compilable);
  m.def("finish_reload(Tensor(a!) reloaded, int graph_id, int id) -> ()", compilable);
  for (const char* moves : {"offload_params", "reload_params", "offload_states", "reload_states"}) {
    m.def((std::string(moves) + "(Tensor(a!) token, int graph_id, int[] ids) -> ()").c_str(), compilable);
  }
  m.def("wait_offloads(Tensor(a!) token, int graph_id) -> ()", compilable);
}

TORCH_LIBRARY_IMPL(dc, CompositeExplicitAutograd, m) {
  using dc::Engine;
  m.impl("allgather_param", dc_allgather_param);
  m.impl("prefetch_params_fused", dc_prefetch_params_fused);
  m.impl("wait_allgather", dc_wait_allgather);
  m.impl("release_param", dc_release_param);
  m.impl("reduce_grad", dc_reduce_grad);
  m.impl("free_tensors", dc::free_tensors);
  m.impl("end_backward", dc_end_backward);
  m.impl("offload_tensor", dc_move<&Engine::offload_tensor>);
  m.impl("reload_tensor", dc_move<&Engine::reload_tensor>);
  m.impl("wait_offload", dc_move<&Engine::wait_offload>);
  m.impl("wait_reload", dc_move<&Engine::wait_reload>);
  m.impl("offload_parameter", dc_move_param<&Engine::offload_parameter>);
  m.impl("reload_parameter", dc_move_param<&Engine::reload_parameter>);
  m.impl("test_call", dc::test_call);
  m.impl("allgather_params_fused", dc_allgather_params_fused);
  m.impl("wait_params", dc_wait_params);
  m.impl("reduce_grads", dc_reduce_grads);
  m.impl("finish_backward", dc_finish_backward);
  m.impl("finish_offload", dc_finish_move<&Engine::finish_offload>);
  m.impl("finish_reload", dc_finish_move<&Engine::finish_reload>);
  m.impl("offload_params", dc_move_several<&Engine::offload_params>);
  m.impl("reload_params", dc_move_several<&Engine::reload_params>);
  m.impl("offload_states", dc_move_several<&Engine::offload_states>);
  m.impl("reload_states", dc_move_several<&Engine::reload_states>);
  m.impl("wait_offloads", dc_wait_offloads);
}

TORCH_LIBRARY_IMPL(dc, Meta, m) {
  using dc::Engine;
  m.impl("allgather_param", dc::allgather_param_meta);
  m.impl("prefetch_params_fused", dc::prefetch_params_fused_meta);
  m.impl("wait_allgather", dc::wait_allgather_meta);
  m.impl("release_param", dc::release_param_meta);
  m.impl("reduce_grad", dc::reduce_grad_meta);
  m.impl("free_tensors", dc::free_tensors_meta);
  m.impl("end_backward", dc::end_backward_meta);
  m.impl("offload_tensor", dc::offload_tensor_meta);
  m.impl("reload_tensor", dc::reload_tensor_meta);
  m.impl("wait_offload", dc::wait_offload_meta);
  m.impl("wait_reload", dc::wait_reload_meta);
  m.impl("offload_parameter", dc::offload_parameter_meta);
  m.impl("reload_parameter", dc::reload_parameter_meta);
  m.impl("test_call", [](at::Tensor a) { return at::empty_like(a); });
  m.impl("allgather_params_fused", dc_allgather_params_fused_fake);
  m.impl("wait_params", fake_of(dc_wait_params));
  m.impl("reduce_grads", fake_of(dc_reduce_grads));
  m.impl("finish_backward", fake_of(dc_finish_backward));
  m.impl("finish_offload", fake_of(dc_finish_move<&Engine::finish_offload>));
  m.impl("finish_reload", fake_of(dc_finish_move<&Engine::finish_reload>));
  m.impl("offload_params", fake_of(dc_move_several<&Engine::offload_params>));
  m.impl("reload_params", fake_of(dc_move_several<&Engine::reload_params>));
  m.impl("offload_states", fake_of(dc_move_several<&Engine::offload_states>));
  m.impl("reload_states", fake_of(dc_move_several<&Engine::reload_states>));
  m.impl("wait_offloads", fake_of(dc_wait_offloads));
}

}  // namespace

}  // namespace octavo
