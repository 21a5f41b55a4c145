// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/sent_momenta.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/lion.h"
#include "octavo/optim/zero_one_adam.h"

namespace octavo {

namespace {

constexpr std::uint64_t kSampleSize = 64;  // elements

void require_beta(double beta, const char* where) {
  if (beta >= 0 && beta < 1) return;
  fail(ErrorCode::invalid_argument, where, "betas must be at least 0 and below 1, got ", beta);
}

/// Returns the address at which kernels of the device read one of the optimizer's tensors.
const float* readable_on(c10::Device device, const at::Tensor& tensor, const char* what) {
  const c10::Device home = tensor.device();
  if (home != device && !(device.is_cpu() && has_host_alias(home))) {
    fail(ErrorCode::invalid_argument, "comm.compressor", what, " must be on the gradients' device: gradients are on ",
         device.str(), ", it is on ", home.str());
  }
  return tensor.const_data_ptr<float>();
}

}  // namespace

SentMomenta::SentMomenta(std::vector<ParameterInfo> parameters, StateStore& state)
    : parameters_(std::move(parameters)), state_(state), substitutes_(parameters_.size()) {}

void SentMomenta::share(const std::map<std::string, Momentum>& momenta, double beta) {
  constexpr const char* kWhere = "comm.set_momentum";
  require_beta(beta, kWhere);
  std::vector<Substitute> substitutes(parameters_.size());
  for (const auto& [name, momentum] : momenta) {
    const std::size_t index = state_.find(name, kWhere);
    for (const at::Tensor& tensor : {momentum.mean, momentum.preconditioner}) require_fits(index, tensor, kWhere);
    substitutes[index] = {true, momentum.mean, momentum.preconditioner};
  }
  begin(Kind::shared, std::move(substitutes), {beta, beta});
}

void SentMomenta::keep_own(const std::vector<std::string>& names, OwnBetas betas) {
  constexpr const char* kWhere = "comm.keep_own_momenta";
  for (const double beta : {betas.update_beta, betas.kept_beta}) require_beta(beta, kWhere);
  std::vector<Substitute> substitutes(parameters_.size());
  for (const std::string& name : names) substitutes[state_.find(name, kWhere)].is_sent = true;
  begin(Kind::own, std::move(substitutes), betas);
}

void SentMomenta::keep_updates(const std::map<std::string, at::Tensor>& preconditioners, double beta) {
  constexpr const char* kWhere = "comm.keep_own_updates";
  require_beta(beta, kWhere);
  std::vector<Substitute> substitutes(parameters_.size());
  for (const auto& [name, preconditioner] : preconditioners) {
    const std::size_t index = state_.find(name, kWhere);
    require_fits(index, preconditioner, kWhere);
    substitutes[index] = {true, {}, preconditioner};
  }
  begin(Kind::updates, std::move(substitutes), {beta, beta});
}

void SentMomenta::begin(Kind kind, std::vector<Substitute> substitutes, OwnBetas betas) {
  const bool is_any = std::ranges::any_of(substitutes, &Substitute::is_sent);
  // What codes left out of a gradient is not owed to a momentum or an update, nor the other way round. Where all
  // parameters change, the compressor drops all that is owed.
  if (any() && is_any && !has_loaded_) {
    for (std::size_t i = 0; i < substitutes.size(); ++i) {
      if (substitutes[i].is_sent != sends(i)) state_.clear_except(i, {kOwnMomentum, kOwnUpdate});
    }
  }
  kind_ = is_any ? kind : Kind::none;
  substitutes_ = std::move(substitutes);
  betas_ = betas;
  if (!has_loaded_) drop_unsent();
  choose_sample();
}

void SentMomenta::begin_step() {
  sample_.values = at::Tensor();
  if (std::exchange(has_loaded_, false)) drop_unsent();
}

/// Drops what is a rank's own of parameters of which nothing of its own is sent.
void SentMomenta::drop_unsent() {
  for (std::size_t i = 0; i < substitutes_.size(); ++i) {
    if (!sends_own(i)) state_.at(i, kOwnMomentum).clear();
    if (!keeps_updates(i)) state_.at(i, kOwnUpdate).clear();
  }
}

void SentMomenta::choose_sample() {
  const auto size_of = [&](std::size_t parameter) { return sends(parameter) ? parameters_[parameter].count : 0; };
  sample_ = {};
  for (std::size_t i = 1; i < substitutes_.size(); ++i) {
    if (size_of(i) > size_of(sample_.parameter)) sample_.parameter = i;
  }
  if (substitutes_.empty()) return;
  sample_.stride = std::max<std::uint64_t>(1, size_of(sample_.parameter) / kSampleSize);
}

void SentMomenta::require_fits(std::size_t parameter, const at::Tensor& tensor, const char* where) const {
  const ParameterInfo& info = parameters_[parameter];
  if (!tensor.defined()) {
    fail(ErrorCode::invalid_argument, where, "expected a tensor with ", info.count, " elements for ", info.name,
         ", got none");
  }
  const bool fits = tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense() &&
                    static_cast<std::uint64_t>(tensor.numel()) == info.count;
  if (fits) return;
  fail(ErrorCode::invalid_argument, where, "expected dense float32 with ", info.count, " elements for ", info.name,
       ", got ", toString(tensor.scalar_type()), " on ", tensor.device().str(), " with ", tensor.numel(),
       " and strides ", tensor.strides());
}

void SentMomenta::replace_gradients(const at::Tensor& values, std::span<const Slot> slots, float gradient_scale) {
  for (const Slot& slot : slots) {
    if (!sends_own(slot.parameter)) continue;
    if (kind_ == Kind::own) {
      mix_own(values, slot, gradient_scale);
    } else {
      add_updates(values, slot, gradient_scale);
    }
  }
}

void SentMomenta::mix_own(const at::Tensor& values, const Slot& slot, float gradient_scale) {
  const c10::Device device = values.device();
  const std::uint64_t count = parameters_[slot.parameter].count;
  Versioned& momentum = state_.at(slot.parameter, kOwnMomentum);
  mix_momentum(device, momentum_mix(betas_.update_beta, betas_.kept_beta, gradient_scale), count,
               values.mutable_data_ptr<float>() + slot.offset, momentum.now_or_zeros<float>(count, device),
               momentum.next<float>(count, device));
}

void SentMomenta::add_updates(const at::Tensor& values, const Slot& slot, float gradient_scale) {
  const c10::Device device = values.device();
  const Substitute& substitute = substitutes_[slot.parameter];
  const float* const preconditioner = readable_on(device, substitute.preconditioner, "a preconditioner");
  const OwnUpdate own = own_update(slot.parameter);
  zero_one_send(device, zero_one_step(betas_.kept_beta, substitute.step_size, gradient_scale),
                parameters_[slot.parameter].count, values.mutable_data_ptr<float>() + slot.offset, preconditioner,
                own.momentum.const_data_ptr<float>(), own.update.const_data_ptr<float>());
}

void SentMomenta::describe(std::size_t parameter, c10::Device device, float gradient_scale,
                           Contribution& contribution) const {
  if (sends_own(parameter)) return;
  if (sends(parameter)) {
    const Substitute& substitute = substitutes_[parameter];
    contribution.momentum = readable_on(device, substitute.mean, "a momentum");
    contribution.preconditioner = readable_on(device, substitute.preconditioner, "a preconditioner");
    contribution.gradient_weight = static_cast<float>(1.0 - betas_.kept_beta);
    contribution.momentum_weight = static_cast<float>(betas_.kept_beta);
  }
  contribution.gradient_weight /= gradient_scale;
}

void SentMomenta::keep_averages(const at::Tensor& values, std::span<const Slot> slots) {
  for (const Slot& slot : slots) {
    if (!keeps_updates(slot.parameter)) continue;
    const std::uint64_t count = parameters_[slot.parameter].count;
    const c10::Device home = preconditioner(slot.parameter).device();
    auto* const next = state_.at(slot.parameter, kOwnUpdate).next<float>(count, home);
    floats_at(next, count, values.device())
        .copy_(values.narrow(0, static_cast<std::int64_t>(slot.offset), static_cast<std::int64_t>(count)));
  }
}

void SentMomenta::take_sample(const at::Tensor& bucket, std::span<const Slot> slots) {
  if (!any()) return;
  for (const Slot& slot : slots) {
    if (slot.parameter != sample_.parameter) continue;
    const auto first = static_cast<std::int64_t>(slot.offset);
    const auto count = static_cast<std::int64_t>(parameters_[slot.parameter].count);
    const auto stride = static_cast<std::int64_t>(sample_.stride);
    sample_.values = bucket.slice(0, first, first + count, stride).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
}

void SentMomenta::set_step_sizes(const std::map<std::string, double>& step_sizes) {
  for (const auto& [name, step_size] : step_sizes) {
    const std::size_t index = state_.find(name, "comm.set_step_sizes");
    if (!keeps_updates(index)) {
      fail(ErrorCode::invalid_argument, "comm.set_step_sizes", name,
           " has no preconditioner: give it one by keep_own_updates");
    }
    substitutes_[index].step_size = step_size;
  }
}

/// Returns the momentum and update, which are zeros at first and lie where the preconditioner is.
SentMomenta::OwnUpdate SentMomenta::own_update(std::size_t parameter) {
  const c10::Device home = preconditioner(parameter).device();
  OwnUpdate own;
  for (auto [tensor, role] : {std::pair(&own.momentum, &kOwnMomentum), std::pair(&own.update, &kOwnUpdate)}) {
    Versioned& kept = state_.at(parameter, *role);
    kept.now_or_zeros<float>(parameters_[parameter].count, home);  // after a restore from a file it is on the CPU
    *tensor = kept.tensor();
  }
  return own;
}

std::map<std::string, SentMomenta::OwnUpdate> SentMomenta::own_updates() {
  std::map<std::string, OwnUpdate> all;
  for (std::size_t i = 0; i < substitutes_.size(); ++i) {
    if (keeps_updates(i)) all[parameters_[i].name] = own_update(i);
  }
  return all;
}

void SentMomenta::clear_step_sizes() {
  for (Substitute& substitute : substitutes_) substitute.step_size = 0;
}

std::vector<std::size_t> SentMomenta::updated_parameters() const {
  std::vector<std::size_t> updated;
  for (std::size_t i = 0; i < substitutes_.size(); ++i) {
    if (keeps_updates(i)) updated.push_back(i);
  }
  return updated;
}

}  // namespace octavo
