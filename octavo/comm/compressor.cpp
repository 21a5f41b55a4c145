// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/compressor.h"

#include <algorithm>
#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// Where a momentum lies for kernels of the device.
const float* readable_on(c10::Device device, const at::Tensor& momentum) {
  if (momentum.device() != device && !(device.is_cpu() && has_host_alias(momentum.device()))) {
    fail(ErrorCode::invalid_argument, "comm.compressor", "expected momenta on the gradients' device, ", device.str(),
         ", got them on ", momentum.device().str());
  }
  return momentum.const_data_ptr<float>();
}

}  // namespace

Compressor::Compressor(std::unique_ptr<Wire> wire, Plan plan, std::vector<ParameterInfo> parameters)
    : wire_(std::move(wire)), plan_(plan) {
  for (ParameterInfo& info : parameters) parameters_.push_back({std::move(info), {}, {}, {}});
}

Compressor::~Compressor() = default;

void Compressor::begin_step() {
  const std::lock_guard lock(mutex_);
  settle();
  for (Parameter& parameter : parameters_) parameter.power = 0;
  ++steps_;
}

void Compressor::abandon_step() {
  const std::lock_guard lock(mutex_);
  for (Parameter& parameter : parameters_) parameter.pending = false;
  settle();
}

void Compressor::settle() {
  for (Parameter& parameter : parameters_) {
    const bool commit = step_is_finite_ && parameter.pending;
    commit ? parameter.worker.commit() : parameter.worker.roll_back();
    commit ? parameter.owner.commit() : parameter.owner.roll_back();
    parameter.pending = false;
  }
  nonfinite_steps_ += step_is_finite_ ? 0 : 1;
  step_is_finite_ = true;
}

std::unique_ptr<Compressor::Job> Compressor::send_up(at::Tensor bucket, std::vector<Slot> slots) {
  const std::lock_guard lock(mutex_);
  const c10::Device device = bucket.device();
  const auto elements = bucket.is_sparse() ? bucket._values().numel() : bucket.numel();
  dense_bytes_ += wire_->dense_bytes(static_cast<std::uint64_t>(elements));
  auto job = std::make_unique<Job>();
  if (bucket.is_sparse() || (plan_.dense() && !in_momentum_phase_)) {
    reduce_dense(bucket);
    return job;
  }
  job->bucket = bucket;
  job->values = bucket.to(at::kFloat);  // the bucket itself where it is float32
  job->slots = std::move(slots);
  auto* data = job->values.mutable_data_ptr<float>();
  std::vector<Contribution> tensors;
  for (const Slot& slot : job->slots) {
    tensors.push_back(contribution(parameters_[slot.parameter], data + slot.offset, device));
  }
  job->two_phase = take_idle(device);
  job->two_phase->send_up(std::move(tensors));
  return job;
}

void Compressor::send_down(Job& job) {
  const std::lock_guard lock(mutex_);
  if (job.two_phase) job.two_phase->send_down(1.0F / static_cast<float>(wire_->world_size()));
}

void Compressor::finish(std::unique_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (!job->two_phase) return;
  const Outcome outcome = job->two_phase->finish();
  step_is_finite_ &= outcome.finite;
  for (std::size_t i = 0; i < job->slots.size(); ++i) {
    Parameter& parameter = parameters_[job->slots[i].parameter];
    parameter.power = outcome.power[i];
    parameter.pending = outcome.power[i] != 0;
  }
  if (!job->values.is_same(job->bucket)) {
    job->bucket.copy_(job->values);
    wait_for_current_stream(job->bucket.device());
  }
  idle_.push_back(std::move(job->two_phase));
}

void Compressor::reduce(at::Tensor bucket, std::vector<Slot> slots) {
  auto job = send_up(std::move(bucket), std::move(slots));
  send_down(*job);
  finish(std::move(job));
}

void Compressor::reduce_dense(at::Tensor& bucket) {
  bucket.div_(wire_->world_size());  // before the sum, as DDP does: the sum could overflow
  if (wire_->world_size() == 1) return wait_for_current_stream(bucket.device());
  if (bucket.is_cpu()) return wire_->all_reduce(bucket);
  at::Tensor on_host = bucket.cpu();  // waits for the stream
  wire_->all_reduce(on_host);
  bucket.copy_(bucket.is_sparse() ? on_host.to(bucket.device())
                                  : on_host);  // sparse ones are copied on one device alone
  wait_for_current_stream(bucket.device());
}

std::unique_ptr<TwoPhase> Compressor::take_idle(c10::Device device) {
  const auto fits = [&](const std::unique_ptr<TwoPhase>& idle) { return idle->device() == device; };
  const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
  if (found == idle_.end()) return std::make_unique<TwoPhase>(*wire_, seconds_, device);
  std::unique_ptr<TwoPhase> idle = std::move(*found);
  idle_.erase(found);
  return idle;
}

Contribution Compressor::contribution(Parameter& parameter, float* values, c10::Device device) {
  Contribution tensor{values, parameter.info.count, plan_.up(), plan_.down()};
  if (parameter.info.exempt) tensor.up = tensor.down = default_format(Codec::fp32);
  if (parameter.momentum.mean.defined()) {
    tensor.momentum = readable_on(device, parameter.momentum.mean);
    tensor.preconditioner = readable_on(device, parameter.momentum.preconditioner);
    tensor.gradient_weight = static_cast<float>(1.0 - beta_);
    tensor.momentum_weight = static_cast<float>(beta_);
  }
  if (plan_.error_feedback && !parameter.info.exempt) {
    tensor.worker = &parameter.worker;
    tensor.owner = &parameter.owner;
  }
  return tensor;
}

}  // namespace octavo
