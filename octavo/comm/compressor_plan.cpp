// SPDX-License-Identifier: Apache-2.0
// Compressor: the plan, and what else is set between steps; momenta are in compressor_momenta.cpp.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/feedback/packed_owed.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

void require_scatterable(const Plan& plan, const std::vector<std::string>& parameters) {
  for (const std::string& parameter : parameters) {
    const ParameterPlan& parameter_plan = plan.of(parameter);
    if (parameter_plan.feedback && !parameter_plan.feedback->fits_kept_sums()) {
      fail(ErrorCode::invalid_argument, kCompressorWhere, "in the plan ", plan.text(), ", +",
           parameter_plan.feedback->text(),
           " remembers what owners send to all, and ranks of fully_shard and ZeRO keep the sums of their shards to ",
           "themselves: ", parameter_plan.compares() ? "use the codec inside lsh with +ef" : "use +ef",
           ", or compress between replicas of shards (octavo.compress, replicas)");
    }
    if (!parameter_plan.map) continue;
    fail(ErrorCode::invalid_argument, kCompressorWhere, "the plan ", plan.text(), " makes a linear map of ", parameter,
         ", which gives all ranks the whole mean, and ranks of fully_shard and ZeRO keep a shard each: use a codec of ",
         "values, such as int4+ef or topk:0.01+ef, or compress between replicas of shards (octavo.compress, replicas)");
  }
}

/// Returns what decides whether what a linear map remembers goes on; empty where there is no map.
std::string map_text(const ParameterPlan* plan) {
  std::string text = plan && plan->map ? plan->map->text() : "";
  if (!text.empty() && plan->feedback) text.append("+").append(plan->feedback->text());
  return text;
}

}  // namespace

Plan Compressor::plan() const {
  const std::lock_guard lock(mutex_);
  return *plan_;
}

void Compressor::set_plan(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  if (momenta_.needs_magnitudes()) require_magnitudes(plan, "comm.set_plan");
  if (momenta_.any()) require_fits_momenta(plan, "comm.set_plan");
  require_fits_ranks(plan);
  end_step_locked();
  use(plan);
}

/// Throws where a rule fits no parameter, and for a plan that these ranks cannot exchange by.
void Compressor::require_fits_ranks(const Plan& plan) const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.info.exempt) names.push_back(parameter.info.name);
  }
  plan.require_rules_fit(names);
  if (scatters()) require_scatterable(plan, names);
  if (host_) require_fits_hosts(plan, names);
  if (plan.general.choices && (scatters() || shards_ || host_)) {
    fail(ErrorCode::invalid_argument, kCompressorWhere, "the plan ", plan.text(),
         " measures the exchanges of DistributedDataParallel between all ranks: with fully_shard, ZeRO and ",
         "ranks_per_host name a plan, such as ", plan.general.choices->back().text());
  }
}

/// Lets all parameters follow the plan, and keeps of what they remember what it continues. What may throw comes before
/// the first change.
void Compressor::use(const Plan& plan) {
  auto next = std::make_shared<const Plan>(plan);
  std::vector<Following> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) all.push_back(following(*next, i));
  std::optional<AutoPlan> choice;
  if (next->general.choices && peer_count() > 1) {
    choice.emplace(next->general.choices->size(),
                   [this](std::vector<std::int64_t>& numbers) { broadcast_from_rank_0(*wire_, numbers); });
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    state_.clear_except(i, all[i].continued);
    parameters_[i].plan = all[i].plan;
    parameters_[i].memory = std::move(all[i].memory);
    parameters_[i].roles = std::move(all[i].roles);
    parameters_[i].packed = {};
  }
  plan_ = std::move(next);
  auto_ = std::move(choice);
  common_.reset();
}

/// Returns how a parameter follows the plan, which must stay where it is.
Compressor::Following Compressor::following(const Plan& plan, std::size_t index) {
  const Parameter& parameter = parameters_[index];
  const ParameterPlan& own_plan = plan.of(parameter.info.name);
  Following next{own_plan.choices ? own_plan.choices->data() : &own_plan};
  const FeedbackPtr& feedback = own_plan.feedback;
  const bool is_mapped = next.plan->map != nullptr;
  const bool remembers = feedback && (feedback->momentum() || (!is_mapped && !parameter.info.exempt));
  next.memory = remembers ? feedback->remember(state_, index) : FeedbackMemory::none();
  next.roles = {kOwnMomentum, kOwnUpdate};
  for (const Role& role : remembers ? feedback->roles() : std::vector<Role>()) {
    const bool is_of_own = is_same(role, kOwnResidual) || is_same(role, kPackedOwedToOwn);
    if (parameter.codes_own_under(*next.plan) || !is_of_own) next.roles.push_back(role);
  }
  next.continued = next.roles;
  if (!is_mapped) return next;
  next.roles.insert(next.roles.end(), {kResidual, kMapMemory});
  // What was loaded is kept, because it may be of this map: a map takes no memory of another size.
  if (map_text(parameter.plan) == map_text(next.plan) || was_loaded_) next.continued = next.roles;
  return next;
}

/// Drops what the plan would not change: under a later plan it would be added to gradients of another time.
void Compressor::forget_unused() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) state_.clear_except(i, parameters_[i].roles);
}

/// Throws for plans that need whole tensors, or one rank's gradients: between hosts ranks exchange ranges of their
/// hosts' means.
void Compressor::require_fits_hosts(const Plan& plan, const std::vector<std::string>& parameters) const {
  for (const std::string& parameter : parameters) {
    const ParameterPlan& parameter_plan = plan.of(parameter);
    if (parameter_plan.map) {
      fail(ErrorCode::invalid_argument, kCompressorWhere, "the plan ", plan.text(), " makes a linear map of ",
           parameter,
           ", which needs the whole tensor, and with ranks_per_host each rank exchanges a range of it: use a ",
           "codec of values, such as int4+ef or topk:0.01+ef, or leave ranks_per_host out");
    }
    if (parameter_plan.feedback && parameter_plan.feedback->needs_whole_power()) {
      fail(
          ErrorCode::invalid_argument, kCompressorWhere, "the plan ", plan.text(),
          " clips each rank's gradient, and with ranks_per_host the mean of a host is sent: leave +clip out, or leave ",
          "ranks_per_host out");
    }
  }
}

void Compressor::set_gradient_scale(double scale) {
  const auto in_float = static_cast<float>(scale);
  if (!(in_float >= std::numeric_limits<float>::min()) || std::isinf(in_float)) {  // gradients are divided by it
    fail(ErrorCode::invalid_argument, "comm.set_gradient_scale",
         "the scale must be positive, finite and a normal number in float32, got ", scale);
  }
  const std::lock_guard lock(mutex_);
  gradient_scale_ = in_float;
}

void Compressor::set_owed_share(double share) {
  if (!(share >= 0 && share <= 1)) {
    fail(ErrorCode::invalid_argument, "comm.set_owed_share", "expected a share from 0 to 1, got ", share);
  }
  const std::lock_guard lock(mutex_);
  owed_share_ = static_cast<float>(share);
}

void Compressor::measure_next_step() {
  const std::lock_guard lock(mutex_);
  if (host_) {
    fail(ErrorCode::unsupported, "comm.measure_next_step",
         "with ranks_per_host a rank has no bucket's whole average to compare: measure without ranks_per_host");
  }
  measures_next_step_ = true;
}

}  // namespace octavo
