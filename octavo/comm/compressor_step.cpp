// SPDX-License-Identifier: Apache-2.0
// Compressor: how a step begins and ends, and how it is taken back.
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/kernels/error.h"

namespace octavo {

void Compressor::begin_step(std::uint64_t mark) {
  const std::lock_guard lock(mutex_);
  mark_ = mark;
  begin_step_of(next_exchange_);
}

void Compressor::begin_step_of(Exchange exchange) {
  end_step_locked();
  exchange_ = exchange;
  if (exchange == Exchange::planned) {
    if (auto_) auto_->begin_step(std::chrono::duration<double>(last_done_ - first_ready_).count());
    first_ready_ = Clock::time_point::max();
  }
  if (std::exchange(residuals_are_of_momenta_, momenta_.any()) != momenta_.any()) drop_residuals_locked();
  if (std::exchange(was_loaded_, false)) forget_unused();
  measures_this_step_ = std::exchange(measures_next_step_, false);
  for (Parameter& parameter : parameters_) {
    parameter.power = 0;
    if (measures_this_step_) parameter.loss = {};
  }
  momenta_.begin_step();
  verdict_.begin_step();
  schedules_.begin_step();
  clips_.begin_step();
  phase_ = Phase::under_way;
  ++steps_here_;
  ++step_number_;
  common_.reset();
}

bool Compressor::end_step() {
  const std::lock_guard lock(mutex_);
  end_step_locked();
  return verdict_.last_step_was_finite();
}

bool Compressor::is_in_step() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::under_way;
}

bool Compressor::was_in_bucket(std::size_t parameter) const {
  const std::lock_guard lock(mutex_);
  require_parameter(parameter, "comm.was_in_bucket");
  return phase_ == Phase::under_way && parameters_[parameter].last_used == steps_here_;
}

void Compressor::abandon_step() {
  const std::lock_guard lock(mutex_);
  abandon_step_locked();
}

void Compressor::abandon_step_locked() {
  roll_back();
  clips_.forget_step();
  phase_ = Phase::none;
  jobs_under_way_ = 0;
  verdict_.abandon_step();
}

void Compressor::drop_step() {
  const std::lock_guard lock(mutex_);
  if (is_committed()) {
    fail(ErrorCode::invalid_argument, "comm.drop_step",
         "the step has ended, and what it has left out is kept already: call this before end_step(), and before any "
         "call that is made between steps, such as state_dict()");
  }
  clips_.begin_count();
  roll_back();
}

void Compressor::drop_step_or_residuals() {
  const std::lock_guard lock(mutex_);
  if (is_committed()) return drop_residuals_locked();
  clips_.begin_count();
  roll_back();
}

void Compressor::scale_step(double factor) {
  if (!(factor >= 0 && factor <= 1)) {
    fail(ErrorCode::invalid_argument, "comm.scale_step", "expected a factor from 0 to 1, got ", factor);
  }
  const std::lock_guard lock(mutex_);
  if (exchange_ == Exchange::nothing) return;  // the factor is this rank's own, and nothing was left out
  const auto [is_of_burst, steps] = clips_.add_clip(factor);
  if (is_of_burst) roll_back();
  if (is_of_burst && (steps > 1 || is_committed())) drop_residuals_locked();
}

/// Whether the residuals of the last step are committed already. Those of one that was not finite never are.
bool Compressor::is_committed() const { return phase_ == Phase::ended && verdict_.last_step_was_finite(); }

void Compressor::roll_back() {
  state_.end_step(/*commit=*/false);
  for (Parameter& parameter : parameters_) parameter.sends_residuals = false;
}

/// Commits what the step under way has left out, or rolls it back. Nothing of it can be taken back afterwards. A step
/// with a bucket under way was broken off, as by an error in a backward pass: a part of its parameters was not sent.
void Compressor::end_step_locked() {
  if (jobs_under_way_ > 0) return abandon_step_locked();
  const bool finite = verdict_.end_step();
  if (!finite) clips_.forget_step();
  if (phase_ == Phase::under_way) phase_ = Phase::ended;
  state_.end_step(finite);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (finite && parameter.repays()) drop_residuals_of(i);
    parameter.sends_residuals = false;
  }
}

}  // namespace octavo
