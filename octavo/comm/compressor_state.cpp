// SPDX-License-Identifier: Apache-2.0
// What a Compressor is told and asked between steps: plan, momenta, residuals, statistics.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/comm/feedback/redistribute.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr const char* kWorker = "worker/";
constexpr const char* kOwner = "owner/";
constexpr std::uint64_t kSampleSize = 64;  // elements

void require_residual(const at::Tensor& values, const std::string& key, bool worker, std::uint64_t parameter_count,
                      int rank, int world_size) {
  if (!values.defined()) return;
  const Sent sent = sent_part(parameter_count, rank, world_size);
  const std::uint64_t count = worker ? sent.count : sent.own.count;
  if (values.scalar_type() == at::kBFloat16 && static_cast<std::uint64_t>(values.numel()) == count) return;
  fail(ErrorCode::invalid_argument, "comm.load_state", "expected bfloat16 with ", count, " elements for ", key,
       " on rank ", rank, " of ", world_size, ", got ", toString(values.scalar_type()), " with ", values.numel());
}

}  // namespace

Plan Compressor::plan() const {
  const std::lock_guard lock(mutex_);
  return plan_;
}

void Compressor::set_plan(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  if (in_momentum_phase_ && plan.votes()) {
    fail(ErrorCode::invalid_argument, "comm.set_plan", "the plan ", plan.text(),
         " keeps no magnitudes: while momenta are averaged, use one that does (sign+ef, int4+ef)");
  }
  settle();
  if (!plan.error_feedback) clear_residuals();
  plan_ = plan;
}

void Compressor::set_momentum(std::map<std::string, Momentum> momenta, double beta) {
  const std::lock_guard lock(mutex_);
  if (!momenta.empty() && plan_.votes()) {
    fail(ErrorCode::invalid_argument, "comm.set_momentum", "the plan ", plan_.text(),
         " keeps no magnitudes: momenta need one that does (sign+ef, int4+ef)");
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
  sample_ = {};
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto size_of = [&](std::size_t index) {
      return parameters_[index].momentum.mean.defined() ? parameters_[index].info.count : 0;
    };
    if (size_of(i) > size_of(sample_.parameter)) sample_.parameter = i;
    sample_.stride = std::max<std::uint64_t>(1, size_of(sample_.parameter) / kSampleSize);
  }
}

Compressor::Sample Compressor::momentum_sample() const {
  const std::lock_guard lock(mutex_);
  return sample_;
}

void Compressor::set_gradient_scale(double scale) {
  if (!(scale > 0) || std::isinf(scale)) {
    fail(ErrorCode::invalid_argument, "comm.set_gradient_scale", "the scale must be positive and finite, got ", scale);
  }
  const std::lock_guard lock(mutex_);
  gradient_scale_ = static_cast<float>(scale);
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

void Compressor::load_residuals(const std::map<std::string, at::Tensor>& residuals, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  replace_residuals(checked(residuals), of_momenta);
}

void Compressor::load_residuals_of(const std::vector<std::map<std::string, at::Tensor>>& world, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<at::Tensor>> by_key;  // then by old rank
  for (std::size_t rank = 0; rank < world.size(); ++rank) {
    for (const auto& [key, values] : world[rank]) {
      auto& parts = by_key[key];
      parts.resize(world.size());
      parts[rank] = values;
    }
  }
  std::map<std::string, at::Tensor> ours;
  for (const auto& [key, parts] : by_key) {
    const auto [worker, index] = find_residual(key);
    const std::uint64_t count = parameters_[index].info.count;
    for (std::size_t old_rank = 0; old_rank < parts.size(); ++old_rank) {
      require_residual(parts[old_rank], key, worker, count, static_cast<int>(old_rank), static_cast<int>(parts.size()));
    }
    const auto redistribute = worker ? redistribute_sent : redistribute_owned;
    ours[key] = redistribute(parts, count, rank(), world_size());
  }
  replace_residuals(checked(ours), of_momenta);
}

Compressor::Residuals Compressor::checked(const std::map<std::string, at::Tensor>& residuals) {
  Residuals found;
  for (const auto& [key, values] : residuals) {
    const auto [worker, index] = find_residual(key);
    Parameter& parameter = parameters_[index];
    require_residual(values, key, worker, parameter.info.count, rank(), world_size());
    found.emplace_back(worker ? &parameter.worker : &parameter.owner, values.detach().cpu().contiguous().clone());
  }
  return found;
}

void Compressor::replace_residuals(Residuals residuals, bool of_momenta) {
  settle();
  clear_residuals();
  residuals_are_of_momenta_ = of_momenta;
  for (auto& [residual, values] : residuals) residual->restore(std::move(values));
}

bool Compressor::residuals_are_of_momenta() const {
  const std::lock_guard lock(mutex_);
  return residuals_are_of_momenta_;
}

std::uint64_t Compressor::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

void Compressor::set_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

std::pair<bool, std::size_t> Compressor::find_residual(const std::string& key) const {
  const bool worker = key.starts_with(kWorker);
  if (!worker && !key.starts_with(kOwner)) {
    fail(ErrorCode::invalid_argument, "comm.load_state", "expected keys worker/NAME or owner/NAME, got ", key);
  }
  return {worker, find(key.substr(key.find('/') + 1), "comm.load_state")};
}

std::size_t Compressor::find(const std::string& name, const char* where) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].info.name == name) return i;
  }
  fail(ErrorCode::invalid_argument, where, "this model has no parameter '", name,
       "' with a gradient: pass names of its own parameters");
}

}  // namespace octavo
