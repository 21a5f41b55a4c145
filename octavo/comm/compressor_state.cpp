// SPDX-License-Identifier: Apache-2.0
// Compressor: what is remembered from step to step.
#include <ATen/ATen.h>

#include "octavo/comm/compressor.h"
#include "octavo/kernels/error.h"

namespace octavo {

void Compressor::drop_residuals() {
  const std::lock_guard lock(mutex_);
  end_step_locked();
  drop_residuals_locked();
}

void Compressor::drop_residuals_locked() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) drop_residuals_of(i);
}

/// Drops all that is remembered of a parameter, except the rank's own momentum and update.
void Compressor::drop_residuals_of(std::size_t parameter) {
  state_.clear_except(parameter, {kOwnMomentum, kOwnUpdate});
}

CompressorState Compressor::state() {
  const std::lock_guard lock(mutex_);
  end_step_locked();
  return {state_.save(), residuals_are_of_momenta_, step_number_, seed_, clips_.usual_factor(), clips_.steps()};
}

void Compressor::load_state(const CompressorState& state) {
  const std::lock_guard lock(mutex_);
  end_step_locked();
  state_.load(state.tensors);
  continue_from(state);
}

void Compressor::load_world(const std::vector<CompressorState>& world) {
  std::vector<std::map<std::string, at::Tensor>> tensors;
  for (const CompressorState& one : world) {
    if (one.step != world.front().step || one.seed != world.front().seed) {
      fail(ErrorCode::invalid_argument, "comm.load_state", "expected states of one step and seed, got steps ",
           world.front().step, " and ", one.step, ", seeds ", world.front().seed, " and ", one.seed);
    }
    tensors.push_back(one.tensors);
  }
  const std::lock_guard lock(mutex_);
  end_step_locked();
  state_.load_world(tensors);  // refuses an empty world
  continue_from(world.front());
}

/// Takes all but the tensors, which are loaded already.
void Compressor::continue_from(const CompressorState& state) {
  was_loaded_ = true;
  momenta_.was_loaded();
  residuals_are_of_momenta_ = state.of_momenta;
  step_number_ = state.step;
  common_.reset();
  seed_ = state.seed;
  clips_.restore(state.usual_factor, state.unclipped_steps);
}

OwedByRange Compressor::owed(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) { return state_.at(parameter, role).tensor(); };
  return owed_from(parameter, kept, wire_->rank(), wire_->world_size());
}

OwedByRange Compressor::owed_of(std::size_t parameter, const std::map<std::string, at::Tensor>& tensors, int rank,
                                int world_size) const {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) {
    const auto found = tensors.find(key_of(role, parameters_[parameter].info.name));
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  return owed_from(parameter, kept, rank, world_size);
}

OwedByRange Compressor::owed_from(std::size_t parameter, const Feedback::KeptByRole& kept, int rank,
                                  int world_size) const {
  require_parameter(parameter, "comm.owed");
  const Parameter& one = parameters_[parameter];
  if (!one.plan->feedback || one.plan->map || one.info.exempt) return {};
  ParameterInfo info = one.info;
  info.count = one.remembered_count;
  return one.plan->feedback->owed(kept, info, rank, world_size);
}

std::uint64_t Compressor::step() const {
  const std::lock_guard lock(mutex_);
  return step_number_;
}

}  // namespace octavo
