// SPDX-License-Identifier: Apache-2.0
// What a Compressor is told and asked between steps: plan, momenta, residuals, its account.
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr const char* kWorker = "worker/";
constexpr const char* kOwner = "owner/";

}  // namespace

Plan Compressor::plan() const {
  const std::lock_guard lock(mutex_);
  return plan_;
}

void Compressor::set_plan(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  if (in_momentum_phase_ && plan.votes()) {
    fail(ErrorCode::invalid_argument, "comm.set_plan",
         "expected a plan that keeps magnitudes (sign+ef, int4+ef) while momenta are averaged, got ", plan.text());
  }
  settle();
  if (!plan.error_feedback) clear_residuals();
  plan_ = plan;
}

void Compressor::set_momentum(std::map<std::string, Momentum> momenta, double beta) {
  const std::lock_guard lock(mutex_);
  if (!momenta.empty() && plan_.votes()) {
    fail(ErrorCode::invalid_argument, "comm.set_momentum",
         "expected a plan that keeps magnitudes (sign+ef, int4+ef), got ", plan_.text());
  }
  std::vector<std::pair<std::size_t, Momentum>> found;
  for (auto& [name, momentum] : momenta) {
    const std::size_t index = find(name, "comm.set_momentum");
    for (const at::Tensor& tensor : {momentum.mean, momentum.preconditioner}) {
      const bool fits = tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense() &&
                        static_cast<std::uint64_t>(tensor.numel()) == parameters_[index].info.count;
      if (fits) continue;
      fail(ErrorCode::invalid_argument, "comm.set_momentum", "expected dense float32 with ",
           parameters_[index].info.count, " elements for ", name, ", got ", toString(tensor.scalar_type()), " on ",
           tensor.device().str(), " with ", tensor.numel(), " and strides ", tensor.strides());
    }
    found.emplace_back(index, std::move(momentum));
  }
  settle();
  for (Parameter& parameter : parameters_) parameter.momentum = {};
  for (auto& [index, momentum] : found) parameters_[index].momentum = std::move(momentum);
  in_momentum_phase_ = !found.empty();
  beta_ = beta;
}

void Compressor::drop_residuals() {
  const std::lock_guard lock(mutex_);
  settle();
  clear_residuals();
}

void Compressor::clear_residuals() {
  for (Parameter& parameter : parameters_) {
    parameter.worker.clear();
    parameter.owner.clear();
  }
}

std::vector<float> Compressor::gradient_powers() const {
  const std::lock_guard lock(mutex_);
  std::vector<float> powers;
  for (const Parameter& parameter : parameters_) powers.push_back(parameter.power);
  return powers;
}

CompressorStats Compressor::stats() const {
  const std::lock_guard lock(mutex_);
  return {wire_->sent_bytes(), dense_bytes_, steps_, nonfinite_steps_ + (step_is_finite_ ? 0 : 1), seconds_};
}

std::map<std::string, at::Tensor> Compressor::residuals() {
  const std::lock_guard lock(mutex_);
  settle();
  std::map<std::string, at::Tensor> all;
  for (const Parameter& parameter : parameters_) {
    if (parameter.worker.tensor().defined()) all[kWorker + parameter.info.name] = parameter.worker.tensor();
    if (parameter.owner.tensor().defined()) all[kOwner + parameter.info.name] = parameter.owner.tensor();
  }
  return all;
}

void Compressor::load_residuals(const std::map<std::string, at::Tensor>& residuals) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Residual*, at::Tensor>> checked;
  for (const auto& [key, values] : residuals) {
    const bool worker = key.starts_with(kWorker);
    if (!worker && !key.starts_with(kOwner)) {
      fail(ErrorCode::invalid_argument, "comm.load_state", "expected keys worker/NAME or owner/NAME, got ", key);
    }
    Parameter& parameter = parameters_[find(key.substr(key.find('/') + 1), "comm.load_state")];
    const Sent sent = sent_part(parameter.info.count, wire_->rank(), wire_->world_size());
    const std::uint64_t count = worker ? sent.count : sent.own.count;
    if (values.scalar_type() != at::kBFloat16 || static_cast<std::uint64_t>(values.numel()) != count) {
      fail(ErrorCode::invalid_argument, "comm.load_state", "expected bfloat16 with ", count, " elements for ", key,
           " on rank ", wire_->rank(), ", got ", toString(values.scalar_type()), " with ", values.numel());
    }
    checked.emplace_back(worker ? &parameter.worker : &parameter.owner, values.detach().cpu().contiguous().clone());
  }
  settle();
  clear_residuals();
  for (auto& [residual, values] : checked) residual->restore(std::move(values));
}

std::size_t Compressor::find(const std::string& name, const char* where) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].info.name == name) return i;
  }
  fail(ErrorCode::invalid_argument, where, "expected a parameter of this model, got '", name, "'");
}

}  // namespace octavo
