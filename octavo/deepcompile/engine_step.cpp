// SPDX-License-Identifier: Apache-2.0
// Engine: how the gradients of a step become averages.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/own_values.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kOfStep = "deepcompile.engine";

/// Throws Error invalid_argument for a null among the executors, where a program may put its own.
template <class Executors>
void require_executors(const Executors& executors) {
  for (const auto& [id, executor] : executors) {
    if (executor) continue;
    fail(ErrorCode::invalid_argument, kOfStep, "the executor of graph ", id, " is null: set one, or erase its entry");
  }
}

/// Returns a gradient whose memory has its values, and has them for nobody else. Autograd gives two parameters
/// gradients in one memory where views of them are added up, or one in memory that it will still read.
at::Tensor made_own(at::Tensor gradient) {
  if (!gradient.has_storage()) return gradient;  // such as a sparse one, which executors refuse
  at::Tensor own = with_own_values(gradient);
  return own.storage().use_count() > 1 ? own.clone() : own;
}

}  // namespace

// ---- a step

void Engine::start_forward() {
  require_executors(executors);
  for (auto& [id, executor] : executors) executor->startForward();
}

void Engine::end_forward() {
  require_executors(executors);
  for (auto& [id, executor] : executors) executor->endForward();
}

void Engine::start_backward(bool update) {
  require_executors(executors);
  if (executors.empty()) {
    fail(ErrorCode::invalid_argument, kOfStep, "a backward pass needs a graph: register one first");
  }
  if (!open_graphs_.empty()) {
    fail(ErrorCode::invalid_argument, kOfStep, "the backward pass before was not ended, and graphs [",
         join_as_str(open_graphs_, ", ", 100), "] have gradients of it: call end_backward() for each of them, or ",
         "give_up_pass() of the engine after an error");
  }
  if (begins_step_) require_all_reduced();
  const bool sends = std::ranges::any_of(executors, [&](const auto& each) { return each.second->sendsIn(update); });
  // A step for the plan, which counts those that send. It may find that a rank was lost, so nothing has changed yet.
  if (sum_ && sends) sum_->begin_pass();
  sends_ = sends;
  is_in_pass_ = true;
  if (std::exchange(begins_step_, update)) param_registry->accumulation().forget_averages();
  has_sent_before_ = !param_registry->accumulation().reduced.empty();
  for (auto& [id, executor] : executors) executor->startBackward(update);
}

/// Throws where the last pass of a step has left out a graph whose gradients of earlier micro-batches waited for it.
void Engine::require_all_reduced() const {
  std::vector<std::string> names;
  for (const auto& [id, sum] : param_registry->accumulation().local) names.push_back(param_registry->nameOf(id));
  if (names.empty()) return;
  std::ranges::sort(names);
  fail(ErrorCode::invalid_argument, kOfStep, "the step before lacks the gradients of ", join_as_str(names, ", ", 200),
       ", which wait in stage 1 for end_backward() of their graph in the last pass of a step: call it for every graph ",
       "there, or call drop_gradients() to begin a step without them");
}

at::Tensor Engine::reduce_grad(at::Tensor grad_tensor, long graph_id, long ds_id) {
  if (flags->profile && grad_tensor.defined()) return at::empty({0}, grad_tensor.options());
  const bool is_there = grad_tensor.defined();
  at::Tensor left = executor(graph_id).reduceGrad(std::move(grad_tensor), ds_id);
  if (is_there) note_gradient(graph_id);
  return left;
}

void Engine::take_grad(at::Tensor grad_tensor, long graph_id, long ds_id) {
  const bool is_there = grad_tensor.defined();
  executor(graph_id).takeGrad(is_there ? made_own(std::move(grad_tensor)) : at::Tensor(), ds_id);
  if (is_there) note_gradient(graph_id);
}

void Engine::note_gradient(long graph_id) {
  is_in_pass_ = true;
  open_graphs_.insert(graph_id);
}

void Engine::reduce_grads(at::TensorList grads, long graph_id, const std::vector<long>& ds_ids) {
  if (grads.size() != ds_ids.size()) {
    fail(ErrorCode::invalid_argument, kOfStep, "expected a gradient for each of ", ds_ids.size(),
         " parameters of graph ", graph_id, ", got ", grads.size());
  }
  if (ignores_gradients_) return;
  for (std::size_t i = 0; i < grads.size(); ++i) reduce_grad(grads[i], graph_id, ds_ids[i]);
  executor(graph_id).blockOnCopies();
  handed_over_[graph_id] += static_cast<std::int64_t>(grads.size());
}

void Engine::finish_backward(long graph_id, std::int64_t n_grads) {
  const std::int64_t got = std::exchange(handed_over_[graph_id], 0);
  end_reductions(graph_id);
  if (got != n_grads && !ignores_gradients_) {
    fail(ErrorCode::invalid_argument, kOfStep, "expected ", n_grads, " gradients of graph ", graph_id, ", got ", got,
         ": the compiler has left out an operator, and parameters were not trained");
  }
  if (fresh_) fresh_->require_waited(executor(graph_id).getParamIds());
}

void Engine::end_backward(long graph_id, bool release_reduce_buckets) {
  end_reductions(graph_id);
  if (release_reduce_buckets && reduce_buckets && reduce_buckets->tasks().empty()) reduce_buckets->clear();
  if (fresh_) fresh_->require_waited(executor(graph_id).getParamIds());
}

void Engine::end_reductions(long graph_id) {
  if (!ignores_gradients_) {
    executor(graph_id).endBackward();
    open_graphs_.erase(graph_id);
    is_in_pass_ = !open_graphs_.empty();
  }
  offload_of(graph_id).clear_reloaded();
}

void Engine::give_up_pass() {
  if (fresh_) fresh_->clear();
  for (auto& [id, executor] : executors) {
    if (executor) executor->giveUpPass();
  }
  if (reduce_buckets) reduce_buckets->clear();  // also of graphs that are gone
  open_graphs_.clear();
  handed_over_.clear();
  if (!std::exchange(is_in_pass_, false)) return;
  if (sum_ && sends_) sum_->give_up_pass();
  forget_sums();
}

void Engine::drop_gradients() {
  if (is_in_pass_) return give_up_pass();
  if (sum_ && sends_) sum_->compressor().drop_step_or_residuals();
  forget_sums();
}

void Engine::forget_sums() {
  param_registry->accumulation() = {};
  begins_step_ = true;
  const bool were_several = std::exchange(has_sent_before_, false) || (sum_ && sends_ && sum_->is_split());
  if (were_several && sum_) sum_->compressor().drop_residuals();  // the first may have left out what the last has sent
}

CustomOpExecutor& Engine::executor(long graph_id) const { return *getExecutor<CustomOpExecutor>(graph_id, executors); }

std::vector<long> Engine::reduced_params() const {
  std::vector<long> reduced;
  for (const auto& [id, is_there] : param_registry->accumulation().reduced) reduced.push_back(id);
  return reduced;
}

Compressor& Engine::compressor() const {
  if (!sum_) fail(ErrorCode::invalid_argument, kOfStep, "gradients are summed up from the first graph on");
  return sum_->compressor();
}

std::uint64_t Engine::sent_bytes() const {
  if (!sum_) return 0;
  std::uint64_t sent = sum_->compressor().stats().wire_bytes + gather_->sent_bytes();
  for (const auto& [id, executor] : executors) {
    if (const auto* reducing = dynamic_cast<const ReducingExecutor*>(executor.get())) sent += reducing->orderBytes();
  }
  return sent;
}

}  // namespace octavo::dc
