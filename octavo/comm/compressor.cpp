// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/compressor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// The address at which kernels of the device read a momentum.
const float* readable_on(c10::Device device, const at::Tensor& momentum) {
  if (momentum.device() != device && !(device.is_cpu() && has_host_alias(momentum.device()))) {
    fail(ErrorCode::invalid_argument, "comm.compressor", "momenta must be on the gradients' device: gradients are on ",
         device.str(), ", a momentum on ", momentum.device().str());
  }
  return momentum.const_data_ptr<float>();
}

/// By the least and the greatest, which are NaN where any value is: a pass at the speed of memory, which torch's norms
/// of order infinity and its isfinite are not.
bool all_finite(const at::Tensor& values) {
  if (values.numel() == 0) return true;
  const auto [least, greatest] = at::aminmax(values);
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

/// Distinct for every step, parameter and rank of a run: what is added to it must not repeat.
std::uint64_t rounding_key(std::uint64_t step, std::size_t parameter, int rank) {
  return step << 32U | (parameter & 0xFFFFFU) << 12U | (static_cast<std::uint64_t>(rank) & 0xFFFU);
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
  if (residuals_are_of_momenta_ != in_momentum_phase_) clear_residuals();
  residuals_are_of_momenta_ = in_momentum_phase_;
  for (Parameter& parameter : parameters_) parameter.power = 0;
  ++steps_;
  ++step_;
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
  dense_bytes_ += wire_->ring_bytes(bucket.is_sparse() ? bucket._values().nbytes() : bucket.nbytes());
  auto job = std::make_unique<Job>();
  if (bucket.is_sparse()) {
    job->bucket = bucket;
    send_unencoded(*job);
    return job;
  }
  if (bucket.is_complex()) {
    bucket = at::view_as_real(bucket).view(-1);
    for (Slot& slot : slots) slot.offset *= 2;
  }
  job->bucket = bucket;
  job->values = bucket.to(at::kFloat);  // the bucket itself where it is float32
  job->slots = std::move(slots);
  job->gradient_scale = gradient_scale_;
  if (plan_.dense() && !in_momentum_phase_) {
    send_unencoded(*job);
    return job;
  }
  job->two_phase = take_idle(bucket.device());
  job->two_phase->send_up(contributions(*job));
  return job;
}

void Compressor::send_down(Job& job) {
  const std::lock_guard lock(mutex_);
  if (job.two_phase) job.two_phase->send_down(1.0F / static_cast<float>(wire_->world_size()));
}

void Compressor::finish(std::unique_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (job->unencoded) return finish_unencoded(*job);
  const Outcome outcome = job->two_phase->finish();
  step_is_finite_ &= outcome.finite;
  const float scale = job->gradient_scale;
  for (std::size_t i = 0; i < job->slots.size(); ++i) {
    Parameter& parameter = parameters_[job->slots[i].parameter];
    parameter.power = outcome.power[i] / (scale * scale);
    parameter.pending = outcome.power[i] != 0;
  }
  if (scale != 1.0F) job->values.mul_(scale);
  if (!job->values.is_same(job->bucket)) job->bucket.copy_(job->values);
  wait_for_current_stream(job->bucket.device());
  take_sample(*job);
  idle_.push_back(std::move(job->two_phase));
}

void Compressor::reduce(at::Tensor bucket, std::vector<Slot> slots) {
  auto job = send_up(std::move(bucket), std::move(slots));
  send_down(*job);
  finish(std::move(job));
}

at::Tensor Compressor::own_powers(const Job& job) {
  at::Tensor scratch;
  const std::vector<Contribution> tensors = contributions(job);
  const std::vector<float> own = octavo::gradient_powers(tensors, job.bucket.device(), scratch);
  at::Tensor powers = at::empty({static_cast<std::int64_t>(own.size())}, at::kDouble);
  std::copy(own.begin(), own.end(), powers.mutable_data_ptr<double>());
  return powers;
}

/// The gradients travel as they are. Their powers, a double for each, travel beside them.
void Compressor::send_unencoded(Job& job) {
  Job::Unencoded& unencoded = job.unencoded.emplace();
  if (!job.bucket.is_sparse()) unencoded.powers = own_powers(job);
  job.bucket.div_(wire_->world_size());  // before the sum, as DDP does: the sum could overflow
  if (wire_->world_size() == 1) return;
  unencoded.on_host = job.bucket.cpu();  // waits for the stream
  for (at::Tensor* tensor : {&unencoded.powers, &unencoded.on_host}) {
    if (tensor->defined()) unencoded.transfers.push_back(wire_->start_all_reduce(*tensor));
  }
}

void Compressor::finish_unencoded(Job& job) {
  auto& [on_host, powers, transfers] = *job.unencoded;
  for (Transfer& transfer : transfers) transfer.wait();
  const bool is_sparse = job.bucket.is_sparse();
  if (on_host.defined() && !on_host.is_same(job.bucket)) {
    job.bucket.copy_(is_sparse ? on_host.to(job.bucket.device()) : on_host);  // sparse: copied only within a device
  }
  wait_for_current_stream(job.bucket.device());
  step_is_finite_ &= all_finite(is_sparse ? job.bucket._values() : job.bucket);
  const double unscale = 1.0 / (static_cast<double>(job.gradient_scale) * job.gradient_scale * wire_->world_size());
  for (std::size_t i = 0; i < job.slots.size(); ++i) {
    parameters_[job.slots[i].parameter].power = static_cast<float>(powers.const_data_ptr<double>()[i] * unscale);
  }
}

void Compressor::take_sample(const Job& job) {
  for (const Slot& slot : job.slots) {
    if (!in_momentum_phase_ || slot.parameter != sample_.parameter) continue;
    const auto first = static_cast<std::int64_t>(slot.offset);
    const auto count = static_cast<std::int64_t>(parameters_[slot.parameter].info.count);
    const auto stride = static_cast<std::int64_t>(sample_.stride);
    sample_.values =
        job.bucket.slice(0, first, first + count, stride).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
}

std::vector<Contribution> Compressor::contributions(const Job& job) {
  auto* values = job.values.mutable_data_ptr<float>();
  std::vector<Contribution> tensors;
  for (const Slot& slot : job.slots) {
    tensors.push_back(contribution(slot.parameter, values + slot.offset, job.values.device()));
  }
  return tensors;
}

std::unique_ptr<TwoPhase> Compressor::take_idle(c10::Device device) {
  const auto fits = [&](const std::unique_ptr<TwoPhase>& idle) { return idle->device() == device; };
  const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
  if (found == idle_.end()) return std::make_unique<TwoPhase>(*wire_, seconds_, device);
  std::unique_ptr<TwoPhase> idle = std::move(*found);
  idle_.erase(found);
  return idle;
}

Contribution Compressor::contribution(std::size_t index, float* values, c10::Device device) {
  Parameter& parameter = parameters_[index];
  Contribution tensor{values, parameter.info.count, plan_.up(), plan_.down()};
  if (parameter.info.exempt) tensor.up = tensor.down = default_format(BlockCodec::fp32);
  if (parameter.momentum.mean.defined()) {
    tensor.momentum = readable_on(device, parameter.momentum.mean);
    tensor.preconditioner = readable_on(device, parameter.momentum.preconditioner);
    tensor.gradient_weight = static_cast<float>(1.0 - beta_);
    tensor.momentum_weight = static_cast<float>(beta_);
  }
  tensor.gradient_weight /= gradient_scale_;
  if (plan_.error_feedback && !parameter.info.exempt) {
    tensor.worker = &parameter.worker;
    tensor.owner = &parameter.owner;
    tensor.rounding_key = rounding_key(step_, index, wire_->rank());
  }
  return tensor;
}

}  // namespace octavo
