// SPDX-License-Identifier: Apache-2.0
// Compressor: what is remembered from step to step.
#include <ATen/ATen.h>

#include "octavo/comm/compressor.h"

namespace octavo {

void Compressor::drop_residuals() {
  const std::lock_guard lock(mutex_);
  close_step();
  forget_owed();
}

/// Forgets all but the ranks' own momenta and updates.
void Compressor::forget_owed() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) state_.clear(i, {kOwnMomentum, kOwnUpdate});
}

std::map<std::string, at::Tensor> Compressor::state() {
  const std::lock_guard lock(mutex_);
  close_step();
  return state_.save();
}

void Compressor::load_state(const std::map<std::string, at::Tensor>& state, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  close_step();
  state_.load(state);
  was_loaded_ = true;
  residuals_are_of_momenta_ = of_momenta;
}

void Compressor::load_state_of(const std::vector<std::map<std::string, at::Tensor>>& world, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  close_step();
  state_.load_world(world);
  was_loaded_ = true;
  residuals_are_of_momenta_ = of_momenta;
}

OwedByRange Compressor::owed(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) { return state_.at(parameter, role).tensor(); };
  return owed_by(parameter, kept, wire_->rank(), wire_->world_size());
}

OwedByRange Compressor::owed_of(std::size_t parameter, const std::map<std::string, at::Tensor>& state, int rank,
                                int world_size) const {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) {
    const auto found = state.find(key_of(role, parameters_[parameter].info.name));
    return found == state.end() ? at::Tensor() : found->second;
  };
  return owed_by(parameter, kept, rank, world_size);
}

OwedByRange Compressor::owed_by(std::size_t parameter, const Feedback::KeptByRole& kept, int rank,
                                int world_size) const {
  require_parameter(parameter, "comm.owed");
  const Parameter& one = parameters_[parameter];
  if (!one.plan->feedback || one.plan->map || one.info.exempt) return {};
  ParameterInfo info = one.info;
  info.count = one.remembered_count;
  return one.plan->feedback->owed(kept, info, rank, world_size);
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

std::uint64_t Compressor::seed() const {
  const std::lock_guard lock(mutex_);
  return seed_;
}

void Compressor::set_seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
}

double Compressor::usual_share() const {
  const std::lock_guard lock(mutex_);
  return usual_share_;
}

void Compressor::set_usual_share(double share) {
  const std::lock_guard lock(mutex_);
  usual_share_ = share;
}

}  // namespace octavo
