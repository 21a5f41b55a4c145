// SPDX-License-Identifier: Apache-2.0
// The phase of 0/1 Adam in a Compressor: updates that ranks make by themselves, and now and then average.
#include <ATen/ATen.h>

#include "octavo/comm/compressor.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/zero_one_adam.h"

namespace octavo {

/// The address at which kernels of the device read one of the optimizer's tensors.
const float* Compressor::readable_on(c10::Device device, const at::Tensor& tensor, const char* what) {
  const c10::Device home = tensor.device();
  if (home != device && !(device.is_cpu() && has_host_alias(home))) {
    fail(ErrorCode::invalid_argument, "comm.compressor", what, " must be on the gradients' device: gradients are on ",
         device.str(), ", it is on ", home.str());
  }
  return tensor.const_data_ptr<float>();
}

void Compressor::keep_own_updates(const std::map<std::string, at::Tensor>& preconditioners, double beta) {
  constexpr const char* kWhere = "comm.keep_own_updates";
  if (!(beta >= 0 && beta < 1)) {
    fail(ErrorCode::invalid_argument, kWhere, "beta must be at least 0 and below 1, got ", beta);
  }
  const std::lock_guard lock(mutex_);
  require_whole_gradients(kWhere);
  if (!preconditioners.empty()) {
    require_fits_momenta(*plan_, kWhere);
    require_magnitudes(*plan_, kWhere);
  }
  std::vector<std::pair<std::size_t, at::Tensor>> found;
  for (const auto& [name, preconditioner] : preconditioners) {
    found.emplace_back(state_.find(name, kWhere), preconditioner);
    require_momentum_of(parameters_[found.back().first], preconditioner, kWhere);
  }
  settle();
  for (const auto& [index, _] : found) {  // what codes left of a gradient is not owed to an update
    if (in_momentum_phase_ && !parameters_[index].sends_momentum()) state_.clear(index, {kOwnMomentum, kOwnUpdate});
  }
  forget_momenta();
  for (auto& [index, preconditioner] : found) parameters_[index].preconditioner = std::move(preconditioner);
  own_betas_ = {beta, beta};
  begin_momentum_phase();
}

void Compressor::set_step_sizes(const std::map<std::string, double>& step_sizes) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, step_size] : step_sizes) {
    Parameter& parameter = parameters_[state_.find(name, "comm.set_step_sizes")];
    if (!parameter.keeps_updates()) {
      fail(ErrorCode::invalid_argument, "comm.set_step_sizes", name,
           " has no preconditioner: give it one by keep_own_updates");
    }
    parameter.step_size = step_size;
  }
}

/// Zeros at first, where the preconditioner is.
Compressor::OwnUpdate Compressor::own_update(std::size_t index) {
  const at::Tensor& like = parameters_[index].preconditioner;
  OwnUpdate own;
  for (auto [tensor, role] : {std::pair(&own.momentum, &kOwnMomentum), std::pair(&own.update, &kOwnUpdate)}) {
    Versioned& kept = state_.at(index, *role);
    kept.now_or_zeros<float>(parameters_[index].info.count, like.device());  // restored from a file it is on the CPU
    *tensor = kept.tensor();
  }
  return own;
}

std::map<std::string, Compressor::OwnUpdate> Compressor::own_updates() {
  const std::lock_guard lock(mutex_);
  settle();
  std::map<std::string, OwnUpdate> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].keeps_updates()) all[parameters_[i].info.name] = own_update(i);
  }
  return all;
}

/// Replaces the gradients of parameters that keep updates of their own by what is sent, in unscaled units.
void Compressor::add_own_updates(const Job& job) {
  for (const Slot& slot : job.slots) {
    const Parameter& parameter = parameters_[slot.parameter];
    if (!parameter.keeps_updates()) continue;
    const c10::Device device = job.values.device();
    const float* const preconditioner = readable_on(device, parameter.preconditioner, "a preconditioner");
    const OwnUpdate own = own_update(slot.parameter);
    zero_one_send(device, zero_one_step(own_betas_.kept_beta, parameter.step_size, job.gradient_scale),
                  parameter.info.count, job.values.mutable_data_ptr<float>() + slot.offset, preconditioner,
                  own.momentum.const_data_ptr<float>(), own.update.const_data_ptr<float>());
  }
}

/// The averages of updates become what the ranks have, all alike, if the step is finite in the end.
void Compressor::keep_averages(const Job& job) {
  for (const Slot& slot : job.slots) {
    const Parameter& parameter = parameters_[slot.parameter];
    if (!parameter.keeps_updates()) continue;
    const auto count = static_cast<std::int64_t>(parameter.info.count);
    const c10::Device home = parameter.preconditioner.device();
    auto* const next = state_.at(slot.parameter, kOwnUpdate).next<float>(parameter.info.count, home);
    floats_at(next, parameter.info.count, job.values.device())
        .copy_(job.values.narrow(0, static_cast<std::int64_t>(slot.offset), count));
  }
}

bool Compressor::exchange_updates() {
  std::vector<Slot> slots;
  std::uint64_t count = 0;
  at::Tensor bucket;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      if (!parameter.keeps_updates()) continue;
      bucket = parameter.preconditioner;
      parameter.step_size = 0;
      slots.push_back({i, count});
      count += parameter.info.count;
    }
    settle();
    if (slots.empty()) return true;
    bucket = where_kernels_run(at::zeros({static_cast<std::int64_t>(count)}, bucket.options()));
    exchange_ = Exchange::planned;
  }
  begin_step();
  try {
    reduce(bucket, std::move(slots));
  } catch (...) {
    abandon_step();
    throw;
  }
  return end_step();
}

}  // namespace octavo
