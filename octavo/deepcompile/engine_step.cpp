// SPDX-License-Identifier: Apache-2.0
// Engine: how the gradients of a step become averages.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <utility>

#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/own_values.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

/// Throws Error invalid_argument for a null among the executors, where a program may put its own.
template <class Executors>
void require_executors(const Executors& executors) {
  for (const auto& [id, executor] : executors) {
    if (executor) continue;
    fail(ErrorCode::invalid_argument, kEngineWhere, "the executor of graph ", id,
         " is null: set one, or erase its entry");
  }
}

/// Returns a gradient whose memory has a place for each of its values, and no other tensor's. Autograd gives two
/// parameters gradients in one memory where views of them are added up, or one in memory that it will still read.
at::Tensor made_own(at::Tensor gradient) {
  if (!gradient.has_storage()) return gradient;  // such as a sparse one, which executors refuse
  at::Tensor own = with_own_values(gradient);
  const bool overlaps = at::has_internal_overlap(own) == at::MemOverlap::Yes;
  return overlaps || own.storage().use_count() > 1 ? own.clone(at::MemoryFormat::Contiguous) : own;
}

}  // namespace

// ---- a step

void Engine::start_forward() {
  require_executors(executors);
  if (shared_) {
    if (shared_->wants_symm_mem) lazy_init_symm_memory();  // first: all ranks make it together
    shared_->fresh->require_all_waited();
  }
  for (auto& [id, executor] : executors) executor->startForward();
}

void Engine::end_forward() {
  require_executors(executors);
  if (shared_) shared_->fresh->require_all_waited();
  for (auto& [id, executor] : executors) executor->endForward();
}

void Engine::start_backward(bool update) {
  require_executors(executors);
  if (executors.empty()) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "a backward pass needs a graph: register one first");
  }
  if (!pass_.open_graphs.empty()) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "the backward pass before was not ended, and graphs [",
         join_as_str(pass_.open_graphs, ", ", 100), "] have gradients of it: call end_backward() for each of them, or ",
         "give_up_pass() of the engine after an error");
  }
  if (pass_.begins_step) require_all_reduced();
  const bool sends = std::ranges::any_of(executors, [&](const auto& each) { return each.second->sendsIn(update); });
  // A step for the plan, which counts those that send. It may find that a rank was lost, so nothing has changed yet.
  if (shared_ && sends) shared_->sum->begin_pass();
  pass_.sends = sends;
  pass_.is_under_way = pass_.was_started = true;
  if (std::exchange(pass_.begins_step, update)) param_registry->accumulation().forget_reduced();
  pass_.has_sent_before = !param_registry->accumulation().reduced.empty();
  for (auto& [id, executor] : executors) executor->startBackward(update);
}

/// Throws where the last pass of a step has left out a graph whose gradients of earlier micro-batches waited for it.
void Engine::require_all_reduced() const {
  std::vector<std::string> names;
  for (const auto& [id, sum] : param_registry->accumulation().local) names.push_back(param_registry->nameOf(id));
  if (names.empty()) return;
  std::ranges::sort(names);
  fail(ErrorCode::invalid_argument, kEngineWhere, "the last step is missing the gradients of ",
       join_as_str(names, ", ", 200),
       ". In stage 1 they are reduced by end_backward() of their graph in the last pass ",
       "of a step: call it for every graph, or call drop_gradients() to begin a step without them");
}

at::Tensor Engine::reduce_grad(at::Tensor grad_tensor, long graph_id, long ds_id) {
  return at(graph_id, {&ds_id, 1}, [&] {
    at::Tensor left = reduce_one(std::move(grad_tensor), graph_id, ds_id);
    executor(graph_id).blockOnCopies();  // a compiler may use the gradient's memory for something else after the call
    return left;
  });
}

at::Tensor Engine::reduce_one(at::Tensor grad_tensor, long graph_id, long ds_id) {
  if (flags->profile && grad_tensor.defined()) return at::empty({0}, grad_tensor.options());
  const bool is_there = grad_tensor.defined();
  if (is_there) require_started();
  at::Tensor left = executor(graph_id).reduceGrad(std::move(grad_tensor), ds_id);
  if (is_there) note_gradient(graph_id);
  return left;
}

void Engine::take_grad(at::Tensor grad_tensor, long graph_id, long ds_id) {
  const bool is_there = grad_tensor.defined();
  at(graph_id, {&ds_id, 1}, [&] {
    if (is_there) require_started();
    executor(graph_id).takeGrad(is_there ? made_own(std::move(grad_tensor)) : at::Tensor(), ds_id);
  });
  if (is_there) note_gradient(graph_id);
}

void Engine::skip_gradients(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    Z3CustomOpExecutor& of_stage_3 = z3_executor(graph_id);
    if (pass_.ignores_gradients) return;
    of_stage_3.skipGrads(ds_ids);
    note_gradient(graph_id);
  });
}

void Engine::require_started() const {
  if (pass_.was_started || !shared_) return;
  fail(ErrorCode::invalid_argument, kEngineWhere, "a gradient came before the first start_backward(): call it at the ",
       "beginning of each backward pass");
}

void Engine::note_gradient(long graph_id) {
  pass_.is_under_way = true;
  pass_.open_graphs.insert(graph_id);
}

void Engine::reduce_grads(at::TensorList grads, long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, ds_ids, [&] {
    if (grads.size() != ds_ids.size()) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "expected a gradient for each of ", ds_ids.size(),
           " parameters of graph ", graph_id, ", got ", grads.size());
    }
    if (pass_.ignores_gradients) return;
    for (std::size_t i = 0; i < grads.size(); ++i) reduce_one(grads[i], graph_id, ds_ids[i]);
    executor(graph_id).blockOnCopies();
    pass_.handed_over[graph_id] += static_cast<std::int64_t>(grads.size());
  });
}

void Engine::finish_backward(long graph_id, std::int64_t n_grads) {
  at(graph_id, {}, [&] {
    const std::int64_t got = std::exchange(pass_.handed_over[graph_id], 0);
    end_reductions(graph_id);
    if (got != n_grads && !pass_.ignores_gradients) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "expected ", n_grads, " gradients of graph ", graph_id, ", got ",
           got, ": the compiler has left out an operator, and parameters were not trained");
    }
    require_waited(executor(graph_id).getParamIds());
  });
}

void Engine::end_backward(long graph_id, bool release_reduce_buckets) {
  at(graph_id, {}, [&] {
    end_reductions(graph_id);
    if (release_reduce_buckets && reduce_buckets && reduce_buckets->tasks().empty()) reduce_buckets->clear();
    require_waited(executor(graph_id).getParamIds());
  });
}

void Engine::require_waited(std::span<const long> ds_ids) const {
  if (shared_) shared_->fresh->require_waited(ds_ids);
}

void Engine::end_reductions(long graph_id) {
  if (!pass_.ignores_gradients) {
    executor(graph_id).endBackward();
    pass_.open_graphs.erase(graph_id);
    pass_.is_under_way = !pass_.open_graphs.empty();
  }
  offload_of(graph_id).clear_reloaded();
}

void Engine::give_up_pass() {
  if (shared_) shared_->fresh->clear();
  for (auto& [id, executor] : executors) {
    if (executor) executor->giveUpPass();
  }
  if (reduce_buckets) reduce_buckets->clear();  // also of graphs that are gone
  pass_.open_graphs.clear();
  pass_.handed_over.clear();
  if (!std::exchange(pass_.is_under_way, false)) return;
  if (shared_ && pass_.sends) shared_->sum->give_up_pass();
  forget_sums();
}

void Engine::drop_gradients() {
  if (pass_.is_under_way) return give_up_pass();
  if (shared_ && pass_.sends) shared_->sum->compressor().drop_step_or_residuals();
  forget_sums();
}

void Engine::forget_sums() {
  param_registry->accumulation() = {};
  pass_.begins_step = true;
  const bool were_several =
      std::exchange(pass_.has_sent_before, false) || (shared_ && pass_.sends && shared_->sum->is_split());
  // The first pass may have left out what the last one has sent.
  if (were_several && shared_) shared_->sum->compressor().drop_residuals();
}

CustomOpExecutor& Engine::executor(long graph_id) const { return *getExecutor<CustomOpExecutor>(graph_id, executors); }

std::vector<long> Engine::reduced_params() const {
  std::vector<long> reduced;
  for (const auto& [id, is_there] : param_registry->accumulation().reduced) reduced.push_back(id);
  return reduced;
}

Compressor& Engine::compressor() const {
  if (!shared_) fail(ErrorCode::invalid_argument, kEngineWhere, "gradients are summed up from the first graph on");
  return shared_->sum->compressor();
}

std::uint64_t Engine::sent_bytes() const {
  if (!shared_) return 0;
  return shared_->sum->compressor().stats().wire_bytes + shared_->gather->sent_bytes() + order_bytes();
}

/// Returns the bytes that agreeing on orders has taken, also of graphs that are forgotten.
std::uint64_t Engine::order_bytes() const {
  std::uint64_t sent = bytes_of_forgotten_orders_;
  for (const auto& [id, executor] : executors) {
    if (const auto* reducing = dynamic_cast<const ReducingExecutor*>(executor.get())) sent += reducing->orderBytes();
  }
  return sent;
}

}  // namespace octavo::dc
