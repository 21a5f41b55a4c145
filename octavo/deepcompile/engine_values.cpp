// SPDX-License-Identifier: Apache-2.0
// Engine: where values are in a step: parameters as a whole or in shards, and what waits on the host.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

// ---- whole parameters

Z3CustomOpExecutor& Engine::z3_executor(long graph_id) const {
  return *getExecutor<Z3CustomOpExecutor>(graph_id, executors);
}

at::Tensor Engine::allgather_param(long graph_id, long ds_id, std::optional<at::ScalarType> dtype) {
  return at(graph_id, {&ds_id, 1}, [&] { return z3_executor(graph_id).allgatherParam(ds_id, dtype); });
}

void Engine::prefetch_params_fused(long graph_id, const std::vector<long>& ds_ids,
                                   const std::vector<at::ScalarType>& dtypes) {
  at(graph_id, ds_ids, [&] { z3_executor(graph_id).prefetchParamsFused(ds_ids, dtypes); });
}

void Engine::gather_into(long graph_id, const std::vector<long>& ds_ids, const std::vector<at::Tensor>& wholes) {
  at(graph_id, ds_ids, [&] {
    if (wholes.size() != ds_ids.size()) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "expected memory for each of ", ds_ids.size(),
           " parameters, got ", wholes.size(), " tensors");
    }
    for (std::size_t i = 0; i < ds_ids.size(); ++i) param_registry->registerGatheredParam(ds_ids[i], wholes[i]);
    z3_executor(graph_id).prefetchParamsFused(ds_ids);
  });
}

void Engine::give_back(long ds_id) {
  at({}, {&ds_id, 1}, [&] {
    if (param_registry->hasGatheredParam(ds_id)) param_registry->unregisterGatheredParam(ds_id);
  });
}

std::vector<at::Tensor> Engine::allgather_params_fused(long graph_id, const std::vector<long>& ds_ids,
                                                       const std::vector<at::ScalarType>& dtypes) {
  return at(graph_id, ds_ids, [&] { return z3_executor(graph_id).allgatherParamsFused(ds_ids, dtypes); });
}

void Engine::wait_params(at::TensorList gathered, long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] { z3_executor(graph_id).waitParams(gathered, ds_ids); });
}

at::Tensor Engine::wait_allgather(at::Tensor v, long graph_id, long ds_id) {
  return at(graph_id, {&ds_id, 1}, [&] { return z3_executor(graph_id).waitAllgather(v, ds_id); });
}

void Engine::release_param(long graph_id, long ds_id, long n_users) {
  at(graph_id, {&ds_id, 1}, [&] { z3_executor(graph_id).releaseParam(ds_id, n_users); });
}

void Engine::set_persistent(long ds_id, bool is_persistent) {
  at({}, {&ds_id, 1}, [&] {
    if (!is_persistent && std::ranges::find(whole_, ds_id) != whole_.end()) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "parameter ", ds_id,
           " is of stage 1 or 2, where parameters stay whole: ", "this is for those of register_z3_param()");
    }
    param_registry->setPersistent(ds_id, is_persistent);
    if (!is_persistent) forget_gathered(ds_id);
  });
}

void Engine::invalidate_gathered_param(long ds_id) {
  at({}, {&ds_id, 1}, [&] { forget_gathered(ds_id); });
}

void Engine::forget_gathered(long ds_id) {
  if (shared_) shared_->gather->wait(ds_id);
  param_registry->setValid(ds_id, false);
  const bool is_given_up = param_registry->hasGatheredParam(ds_id) && !param_registry->getParam(ds_id).isPersistent();
  if (is_given_up) param_registry->unregisterGatheredParam(ds_id);
}

void Engine::clear_all_gathered_params() {
  for (const SummedParam& param : params_) invalidate_gathered_param(param.id);
}

// ---- values that wait on the host

TensorOffload& Engine::offload_of(long graph_id) {
  require_graph(graph_id);
  return offloads_[graph_id];
}

at::Tensor Engine::offload_tensor(at::Tensor tensor, long graph_id, long id) {
  return at_value(graph_id, id,
                  [&] { return offload_of(graph_id).offload(tensor, id, flags->offload_activation_pin_memory); });
}

at::Tensor Engine::reload_tensor(at::Tensor tensor, long graph_id, long id) {
  return at_value(graph_id, id, [&] { return offload_of(graph_id).reload(tensor, id); });
}

// The tensor is in the schemas of these operators, as in DeepSpeed's: it fixes their place in a graph.

at::Tensor Engine::wait_offload(at::Tensor, long graph_id, long id) {
  return at_value(graph_id, id, [&] { return offload_of(graph_id).wait_offload(id); });
}

/// Returns `tensor` where a pass is measured operator by operator and the value was perhaps never sent to the host.
at::Tensor Engine::wait_reload(at::Tensor tensor, long graph_id, long id) {
  return at_value(graph_id, id, [&] {
    TensorOffload& offload = offload_of(graph_id);
    return flags->profile && !offload.is_reloading(id) ? tensor : offload.wait_reload(id);
  });
}

void Engine::finish_offload(at::Tensor, long graph_id, long id) {
  at_value(graph_id, id, [&] { offload_of(graph_id).wait_offload(id); });
}

void Engine::finish_reload(at::Tensor, long graph_id, long id) {
  at_value(graph_id, id, [&] { offload_of(graph_id).hand_over_reloaded(id); });
}

void Engine::offload_parameter(long graph_id, long ds_id) {
  at(graph_id, {&ds_id, 1}, [&] {
    executor(graph_id).requireParam(ds_id);
    param_registry->offload(ds_id);
  });
}

void Engine::reload_parameter(long graph_id, long ds_id) {
  at(graph_id, {&ds_id, 1}, [&] {
    executor(graph_id).requireParam(ds_id);
    param_registry->reload(ds_id);
  });
}

void Engine::offload_params(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    require_graph(graph_id);
    for (const long id : ds_ids) param_registry->offload(id);
  });
}

void Engine::reload_params(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    require_graph(graph_id);
    for (const long id : ds_ids) param_registry->reload(id);
  });
}

// ---- what the optimizer keeps

void Engine::set_states(long ds_id, std::vector<at::Tensor> states) {
  at({}, {&ds_id, 1}, [&] {
    param_registry->getParam(ds_id);  // throws for an unknown parameter
    states_.set(ds_id, std::move(states));
  });
}

void Engine::offload_states(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    require_graph(graph_id);
    for (const long id : ds_ids) states_.offload(id);
  });
}

void Engine::reload_states(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    require_graph(graph_id);
    if (!pass_.begins_step) return;  // another micro-batch comes before they are needed
    for (const long id : ds_ids) states_.reload(id);
  });
}

void Engine::wait_offloads() const {
  states_.wait_offloads();
  param_registry->waitOffloads();
}

void Engine::restore() {
  states_.restore();
  param_registry->restore();
}

/// Records the use of the memory: the current stream may have work left with memory that another stream has made.
void Engine::free_tensors(const std::vector<at::Tensor>& tensors) const {
  if (flags->profile) return;
  if (!std::ranges::all_of(tensors, &at::Tensor::defined)) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected tensors to free, got an undefined one");
  }
  for (const at::Tensor& tensor : tensors) {
    if (static_cast<std::int64_t>(tensor.nbytes()) <= flags->free_activation_threshold) continue;
    const c10::Device device = tensor.device();
    c10::impl::VirtualGuardImpl(device.type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream_of(device));
    tensor.set_data(at::empty({0}, tensor.options()));
  }
}

/// Makes transfers of about a bucket each, as many of them under way as ParamGather lets there be.
void Engine::gather_updated() {
  if (!shared_) return;
  std::vector<long> together;
  std::int64_t elements = 0;
  const auto start = [&] {
    shared_->gather->start(together);
    together.clear();
    elements = 0;
  };
  for (const long id : whole_) {
    param_registry->setValid(id, false);
    together.push_back(id);
    elements += static_cast<std::int64_t>(productDim(param_registry->getParam(id).getShape()));
    if (elements >= bucket_size_) start();
  }
  start();
  for (const long id : whole_) shared_->gather->wait(id);
}

}  // namespace octavo::dc
