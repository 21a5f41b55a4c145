// SPDX-License-Identifier: Apache-2.0
// What a Compressor is told and asked between steps: plan, momenta, residuals, statistics.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/comm/feedback/econtrol.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/feedback/packed_owed.h"
#include "octavo/comm/state/packed.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::uint64_t kSampleSize = 64;  // elements

std::optional<double> reused_share(const PackedFigures& sent) {
  if (sent.values == 0) return std::nullopt;
  return static_cast<double>(sent.reused) / static_cast<double>(sent.values);
}

void require_scatterable(const Plan& plan, const std::vector<std::string>& parameters) {
  for (const std::string& parameter : parameters) {
    const ParameterPlan& of_one = plan.of(parameter);
    if (of_one.feedback && !of_one.feedback->fits_kept_sums()) {
      fail(ErrorCode::invalid_argument, "comm.compressor", "in the plan ", plan.text(), ", +", of_one.feedback->text(),
           " remembers what owners send to all, and ranks of fully_shard and ZeRO keep the sums of their shards to ",
           "themselves: ", of_one.compares() ? "use the codec inside lsh with +ef" : "use +ef",
           ", or compress between replicas of shards (octavo.compress, replicas)");
    }
    if (!of_one.map) continue;
    fail(ErrorCode::invalid_argument, "comm.compressor", "the plan ", plan.text(), " makes a linear map of ", parameter,
         ", which gives all ranks the whole mean, and ranks of fully_shard and ZeRO keep a shard each: use a codec of ",
         "values, such as int4+ef or topk:0.01+ef, or compress between replicas of shards (octavo.compress, replicas)");
  }
}

}  // namespace

Plan Compressor::plan() const {
  const std::lock_guard lock(mutex_);
  return *plan_;
}

void Compressor::set_plan(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  const bool averages_momenta = std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& one) {
    return one.momentum.mean.defined() || one.keeps_updates();
  });
  if (averages_momenta) require_magnitudes(plan, "comm.set_plan");
  if (in_momentum_phase_) require_fits_momenta(plan, "comm.set_plan");
  settle();
  use(plan);
}

/// Momenta that are averaged need their magnitudes.
void Compressor::require_magnitudes(const Plan& plan, const char* where) {
  if (!plan.votes()) return;
  fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
       " keeps no magnitudes: momenta need one that does (sign+ef, int4+ef)");
}

/// Two momenta, one of another, are no momentum; and what is sent of momenta says nothing of gradients.
void Compressor::require_fits_momenta(const Plan& plan, const char* where) {
  if (plan.choices) {
    fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
         " chooses among plans for gradients: momenta need a plan that stays the same (sign+ef, int4+ef)");
  }
  if (!plan.momentum()) return;
  fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
       " has a momentum of its own: send momenta by one that has none (sign+ef, topk:0.01+ef)");
}

void Compressor::use(const Plan& plan) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.info.exempt) names.push_back(parameter.info.name);
  }
  plan.require_rules_fit(names);
  if (scatters()) require_scatterable(plan, names);
  if (host_) require_fits_hosts(plan, names);
  if (plan.choices && (scatters() || shards_ || host_)) {
    fail(ErrorCode::invalid_argument, "comm.compressor", "the plan ", plan.text(),
         " measures the exchanges of DistributedDataParallel between all ranks: with fully_shard, ZeRO and ",
         "ranks_per_host name a plan, such as ", plan.choices->back().text());
  }
  // kept here: the parameters still point to it
  const std::shared_ptr<const Plan> before = std::exchange(plan_, std::make_shared<const Plan>(plan));
  const auto map_text = [](const ParameterPlan* of_one) {
    if (!of_one || !of_one->map) return std::string();
    return of_one->map->text() + (of_one->feedback ? "+" + of_one->feedback->text() : "");
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const ParameterPlan& of_this = plan_->of(parameter.info.name);
    const ParameterPlan* const now = of_this.choices ? of_this.choices->data() : &of_this;
    const ParameterPlan* const old = std::exchange(parameter.plan, now);
    const FeedbackPtr& feedback = of_this.feedback;
    const bool is_mapped = now->map != nullptr, same_map = map_text(old) == map_text(now);
    const bool remembers = feedback && (feedback->momentum() || (!is_mapped && !parameter.info.exempt));
    parameter.packed = {};
    parameter.memory = remembers ? feedback->remember(state_, i) : Memory::none();
    parameter.roles = {kOwnMomentum, kOwnUpdate};
    for (const Role& role : remembers ? feedback->roles() : std::vector<Role>()) {
      const bool is_of_own = is_same(role, kOwnResidual) || is_same(role, kPackedOwedToOwn);
      if (parameter.codes_own() || !is_of_own) parameter.roles.push_back(role);
    }
    // What was loaded may be of this map: a map takes no memory of another size.
    if (is_mapped && !same_map && !was_loaded_) state_.clear(i, parameter.roles);
    if (is_mapped) parameter.roles.insert(parameter.roles.end(), {kResidual, kMapMemory});
  }
  forget_unused();
  auto_.reset();
  if (plan_->choices && world_size() > 1) {
    auto_.emplace(plan_->choices->size(), [this](std::vector<std::int64_t>& numbers) { tell(numbers); });
  }
}

/// What the plan would not change: under a later one it would be added to gradients of another time.
void Compressor::forget_unused() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) state_.clear(i, parameters_[i].roles);
}

/// Between hosts ranks exchange ranges of their hosts' means.
void Compressor::require_fits_hosts(const Plan& plan, const std::vector<std::string>& parameters) const {
  StateStore unused(remembered({{"", 0, false}}), feedback_roles(), wire_->rank(), wire_->world_size());
  for (const std::string& parameter : parameters) {
    const ParameterPlan& of_one = plan.of(parameter);
    if (of_one.map) {
      fail(ErrorCode::invalid_argument, "comm.compressor", "the plan ", plan.text(), " makes a linear map of ",
           parameter,
           ", which needs the whole tensor, and with ranks_per_host each rank exchanges a range of it: use a ",
           "codec of values, such as int4+ef or topk:0.01+ef, or leave ranks_per_host out");
    }
    if (of_one.feedback && of_one.feedback->remember(unused, 0)->needs_whole_power()) {
      fail(
          ErrorCode::invalid_argument, "comm.compressor", "the plan ", plan.text(),
          " clips each rank's gradient, and with ranks_per_host the mean of a host is sent: leave +clip out, or leave ",
          "ranks_per_host out");
    }
  }
}

void Compressor::set_momentum(std::map<std::string, Momentum> momenta, double beta) {
  const std::lock_guard lock(mutex_);
  if (!momenta.empty()) {
    require_whole_averages("comm.set_momentum");
    require_magnitudes(*plan_, "comm.set_momentum");
    require_fits_momenta(*plan_, "comm.set_momentum");
  }
  std::vector<std::pair<std::size_t, Momentum>> found;
  for (auto& [name, momentum] : momenta) {
    const std::size_t index = state_.find(name, "comm.set_momentum");
    for (const at::Tensor& tensor : {momentum.mean, momentum.preconditioner}) {
      require_momentum_of(parameters_[index], tensor, "comm.set_momentum");
    }
    found.emplace_back(index, std::move(momentum));
  }
  settle();
  forget_momenta();
  for (auto& [index, momentum] : found) parameters_[index].momentum = std::move(momentum);
  beta_ = beta;
  begin_momentum_phase();
}

void Compressor::require_momentum_of(const Parameter& parameter, const at::Tensor& tensor, const char* where) {
  const bool fits = tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense() &&
                    static_cast<std::uint64_t>(tensor.numel()) == parameter.info.count;
  if (fits) return;
  fail(ErrorCode::invalid_argument, where, "expected dense float32 with ", parameter.info.count, " elements for ",
       parameter.info.name, ", got ", toString(tensor.scalar_type()), " on ", tensor.device().str(), " with ",
       tensor.numel(), " and strides ", tensor.strides());
}

/// What ranks make of their own gradients they make of whole ones.
void Compressor::require_whole_gradients(const char* where) const {
  if (host_) {
    fail(ErrorCode::unsupported, where,
         "with ranks_per_host the means of hosts are sent, and nothing of a rank's own: leave ranks_per_host out");
  }
  if (!scatters() && !shards_) return;
  fail(ErrorCode::unsupported, where,
       "ranks of fully_shard have each a shard of the averages: this is for DistributedDataParallel");
}

/// Momenta are of whole parameters.
void Compressor::require_whole_averages(const char* where) const {
  if (!scatters()) return;
  fail(ErrorCode::unsupported, where,
       "ranks of fully_shard have each a shard of the averages: keep momenta with DistributedDataParallel");
}

void Compressor::set_exchange(Exchange exchange) {
  const std::lock_guard lock(mutex_);
  if (exchange != Exchange::planned) require_whole_gradients("comm.set_exchange");
  settle();
  exchange_ = exchange;
}

void Compressor::set_owed_share(double share) {
  const std::lock_guard lock(mutex_);
  owed_share_ = static_cast<float>(share);
}

Exchange Compressor::exchange() const {
  const std::lock_guard lock(mutex_);
  return exchange_;
}

void Compressor::keep_own_momenta(const std::vector<std::string>& names, OwnMomentum betas) {
  for (const double beta : {betas.update_beta, betas.kept_beta}) {
    if (beta >= 0 && beta < 1) continue;
    fail(ErrorCode::invalid_argument, "comm.keep_own_momenta", "betas must be at least 0 and below 1, got ", beta);
  }
  const std::lock_guard lock(mutex_);
  require_whole_averages("comm.keep_own_momenta");
  if (host_ && !names.empty()) {
    fail(ErrorCode::unsupported, "comm.keep_own_momenta",
         "with ranks_per_host the means of hosts are sent, and no rank's own update: leave ranks_per_host out");
  }
  if (!names.empty()) require_fits_momenta(*plan_, "comm.keep_own_momenta");
  std::vector<std::size_t> found;
  for (const std::string& name : names) found.push_back(state_.find(name, "comm.keep_own_momenta"));
  settle();
  forget_momenta();
  for (const std::size_t index : found) parameters_[index].keeps_momentum = true;
  own_betas_ = betas;
  begin_momentum_phase();
}

void Compressor::forget_momenta() {
  for (Parameter& parameter : parameters_) {
    parameter.momentum = {};
    parameter.keeps_momentum = false;
    parameter.preconditioner = at::Tensor();
  }
}

/// Or ends it: what follows from the momenta that parameters have.
void Compressor::begin_momentum_phase() {
  in_momentum_phase_ = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    in_momentum_phase_ |= parameters_[i].sends_momentum();
    if (!parameters_[i].sends_own()) state_.at(i, kOwnMomentum).clear();
    if (!parameters_[i].keeps_updates()) state_.at(i, kOwnUpdate).clear();
  }
  sample_ = {};
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto size_of = [&](std::size_t index) {
      return parameters_[index].sends_momentum() ? parameters_[index].info.count : 0;
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
  const auto in_float = static_cast<float>(scale);
  if (!(in_float * in_float > 0) || std::isinf(in_float * in_float)) {  // by the square powers are divided
    fail(ErrorCode::invalid_argument, "comm.set_gradient_scale",
         "the scale must be positive, finite, and so in float32 also squared, got ", scale);
  }
  const std::lock_guard lock(mutex_);
  gradient_scale_ = in_float;
}

void Compressor::drop_residuals() {
  const std::lock_guard lock(mutex_);
  settle();
  for (std::size_t i = 0; i < parameters_.size(); ++i) state_.clear(i, {kOwnMomentum, kOwnUpdate});
}

std::vector<float> Compressor::gradient_powers() const {
  const std::lock_guard lock(mutex_);
  std::vector<float> powers;
  for (const Parameter& parameter : parameters_) powers.push_back(parameter.power);
  return powers;
}

void Compressor::measure_next_step() {
  const std::lock_guard lock(mutex_);
  if (host_) {
    fail(ErrorCode::unsupported, "comm.measure_next_step",
         "with ranks_per_host a rank has no bucket's whole average to compare: measure without ranks_per_host");
  }
  measures_next_ = true;
}

CompressorStats Compressor::stats() {
  const std::lock_guard lock(mutex_);
  hear_others();
  return {wire_->sent_bytes() + (shards_ ? shards_->sent_bytes() : 0),
          host_ ? host_->sent_bytes() : 0,
          dense_bytes_,
          steps_,
          nonfinite_steps_ + (step_is_finite_ ? 0 : 1),
          seconds_,
          reused_share(compared_)};
}

/// Of a payload that a ring sends for the same result.
std::uint64_t Compressor::ring_bytes(std::uint64_t payload_bytes) const {
  return octavo::ring_bytes(payload_bytes, all_ranks()) / (scatters() ? 2 : 1);
}

std::optional<AutoStats> Compressor::auto_stats() const {
  const std::lock_guard lock(mutex_);
  if (!auto_) return std::nullopt;
  AutoStats stats{auto_->report(), {}, {}};
  for (const ParameterPlan& plan : *plan_->choices) stats.plans.push_back(plan.text());
  for (const Parameter& parameter : parameters_) stats.parameters.push_back(parameter.info.name);
  return stats;
}

std::uint64_t Compressor::wire_bytes(const Parameter& parameter) const {
  const std::uint64_t count = parameter.remembered_count;
  if (parameter.plan->dense() && !in_momentum_phase_ && !host_) return ring_bytes(count * sizeof(float));
  const auto [up, down] = codecs_of(parameter);
  const int world = wire_->world_size();
  const LinearMap* const map = map_of(parameter);
  const auto size_of = [](const Codec& codec, std::uint64_t owned) {
    return codec.traits().packs ? 0 : codec.payload_bytes(owned);
  };
  std::uint64_t bytes = parameter.packed.bytes;
  const auto receivers = static_cast<std::uint64_t>(scatters() ? 0 : world - 1);  // of a sum
  for (const std::uint64_t sent : map ? map->image_sizes(shape_of(parameter), step_) : std::vector{count}) {
    for (int owner = 0; owner < world; ++owner) {
      const std::uint64_t owned = owned_range(sent, owner, world, parameter.info.ownership).count;
      bytes += owner == wire_->rank() ? size_of(*down, owned) * receivers : size_of(*up, owned);
    }
  }
  return bytes;
}

std::vector<ParameterStats> Compressor::parameter_stats() {
  const std::lock_guard lock(mutex_);
  settle();
  std::vector<ParameterStats> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const ParameterInfo& info = parameter.info;
    double owed = 0;
    for (const Role& role : {kWorkerResidual, kOwnerResidual, kOwnResidual, kResidual, kOwed, kOwedToAll}) {
      const at::Tensor& residual = state_.at(i, role).tensor();
      if (residual.defined()) owed += residual.to(at::kFloat).square().sum(at::kDouble).item<double>();
    }
    for (const Role& role : {kPackedOwed, kPackedOwedToAll, kPackedOwedToOwn}) {
      const at::Tensor& packed = state_.at(i, role).tensor();
      if (!packed.defined()) continue;
      const at::Tensor residual =
          unpack(packed, role.extent, parameter.remembered_count, wire_->rank(), wire_->world_size(), info.ownership);
      owed += residual.square().sum(at::kDouble).item<double>();
    }
    const auto rms = std::sqrt(owed / static_cast<double>(std::max<std::uint64_t>(1, parameter.remembered_count)));
    const std::string plan = info.exempt ? ParameterPlan().text() : parameter.plan->text();
    all.push_back({info.name, plan, info.count, wire_bytes(parameter), ring_bytes(info.count * sizeof(float)),
                   std::sqrt(parameter.power), static_cast<float>(rms),
                   parameter.compares() ? reused_share(parameter.packed) : std::nullopt, parameter.loss});
  }
  return all;
}

std::map<std::string, at::Tensor> Compressor::residuals() {
  const std::lock_guard lock(mutex_);
  settle();
  return state_.save();
}

void Compressor::load_residuals(const std::map<std::string, at::Tensor>& residuals, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  settle();
  state_.load(residuals);
  was_loaded_ = true;
  residuals_are_of_momenta_ = of_momenta;
}

void Compressor::load_residuals_of(const std::vector<std::map<std::string, at::Tensor>>& world, bool of_momenta) {
  const std::lock_guard lock(mutex_);
  settle();
  state_.load_world(world);
  was_loaded_ = true;
  residuals_are_of_momenta_ = of_momenta;
}

OwedByRange Compressor::owed(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) { return state_.at(parameter, role).tensor(); };
  return owed_by(parameter, kept, wire_->rank(), wire_->world_size());
}

OwedByRange Compressor::owed_of(std::size_t parameter, const std::map<std::string, at::Tensor>& residuals, int rank,
                                int world_size) const {
  const std::lock_guard lock(mutex_);
  const auto kept = [&](const Role& role) {
    const auto found = residuals.find(key_of(role, parameters_[parameter].info.name));
    return found == residuals.end() ? at::Tensor() : found->second;
  };
  return owed_by(parameter, kept, rank, world_size);
}

OwedByRange Compressor::owed_by(std::size_t parameter, const Feedback::KeptByRole& kept, int rank,
                                int world_size) const {
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

}  // namespace octavo
