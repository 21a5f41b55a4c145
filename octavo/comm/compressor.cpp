// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/compressor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/feedback/dgc.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/schedule/all_reduce_sum.h"
#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/schedule/hierarchical.h"
#include "octavo/comm/schedule/linear_sum.h"
#include "octavo/comm/schedule/one_phase.h"
#include "octavo/comm/schedule/reduce_scatter_sum.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/lion.h"
#include "octavo/rules/gradient_power.h"

namespace octavo {

namespace {

/// The codec by which a contribution goes up: bfloat16 gradients that would be sent in float32 are that in half of it.
const Codec* without_loss(const Contribution& tensor) {
  const bool is_bfloat16 = tensor.dtype == at::kBFloat16 && tensor.memory == Memory::none();
  return is_bfloat16 && tensor.up == &block_coding(BlockCodec::fp32) ? &exact_coding(tensor.dtype) : tensor.up;
}

/// Distinct for every step, parameter and rank of a run: what is added to it must not repeat.
std::uint64_t rounding_key(std::uint64_t step, std::size_t parameter, int rank) {
  return step << 32U | (parameter & 0xFFFFFU) << 12U | (static_cast<std::uint64_t>(rank) & 0xFFFU);
}

std::vector<Role> all_roles() {
  std::vector<Role> roles = feedback_roles();
  roles.insert(roles.end(), {kResidual, kMapMemory, kOwnMomentum, kOwnUpdate});
  return roles;
}

/// Of a map, of what it remembers only whether it does: that is the same on all ranks, and large.
std::uint64_t mapping_digest(const Mapping& mapping) {
  if (!mapping.map) return 0;
  const bool remembers = mapping.memory->tensor().defined();
  const std::uint64_t kept = 2 * (mapping.error_feedback ? 1 : 0) + (remembers ? 1 : 0);
  return rules::derive_key(mapping.map->fingerprint(), std::uint64_t{rules::to_bits(mapping.momentum)} << 2 | kept);
}

}  // namespace

Matrix Compressor::shape_of(const Parameter& parameter) {
  return {parameter.info.rows, parameter.info.count / parameter.info.rows};
}

Compressor::Compressor(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<ParameterInfo> parameters,
                       Collective collective, std::unique_ptr<Wire> shards, std::unique_ptr<Wire> host,
                       StatePaging paging)
    : wire_(std::move(wire)),
      shards_(std::move(shards)),
      host_(std::move(host)),
      collective_(collective),
      state_(remembered(parameters), all_roles(), wire_->rank(), wire_->world_size(), std::move(paging)) {
  if (scatters()) verdict_.emplace(*wire_);
  if (shards_) verdict_.emplace(*shards_);
  const std::vector<ParameterInfo> of_state = remembered(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters_.push_back({std::move(parameters[i])});
    parameters_.back().remembered_count = of_state[i].count;
  }
  use(plan);
}

/// Parameters as what is remembered has them.
std::vector<ParameterInfo> Compressor::remembered(std::vector<ParameterInfo> parameters) const {
  for (ParameterInfo& info : parameters) {
    if (host_) info.count = owned_range(info.count, host_->rank(), host_->world_size()).count;
  }
  return parameters;
}

Compressor::~Compressor() = default;

void Compressor::begin_step() {
  const std::lock_guard lock(mutex_);
  settle();
  if (exchange_ == Exchange::planned) {
    if (auto_) auto_->begin_step(std::chrono::duration<double>(last_done_ - first_ready_).count());
    first_ready_ = Clock::time_point::max();
  }
  if (residuals_are_of_momenta_ != in_momentum_phase_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) state_.clear(i, {kOwnMomentum, kOwnUpdate});
  }
  residuals_are_of_momenta_ = in_momentum_phase_;
  if (std::exchange(was_loaded_, false)) forget_unused();
  measures_ = std::exchange(measures_next_, false);
  for (Parameter& parameter : parameters_) {
    parameter.power = 0;
    if (measures_) parameter.loss = {};
  }
  sample_.values = at::Tensor();
  has_step_ = true;
  ++steps_;
  ++step_;
}

bool Compressor::end_step() {
  const std::lock_guard lock(mutex_);
  settle();
  return last_step_was_finite_;
}

void Compressor::abandon_step() {
  const std::lock_guard lock(mutex_);
  state_.settle(/*commit=*/false);
  if (verdict_) verdict_->forget();
  for (Parameter& parameter : parameters_) parameter.has_sent_owed = false;
  settle();
  last_step_was_finite_ = false;
}

void Compressor::hear_others() {
  if (!verdict_) return;
  const bool own = std::exchange(step_is_finite_, false);  // counts where hear() throws
  step_is_finite_ = verdict_->hear() && own;
}

void Compressor::settle() {
  hear_others();
  state_.settle(step_is_finite_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (std::exchange(parameter.has_sent_owed, false) && step_is_finite_ && parameter.power != 0) {
      state_.clear(i, {kOwnMomentum, kOwnUpdate});
    }
  }
  if (std::exchange(has_step_, false)) last_step_was_finite_ = step_is_finite_;
  nonfinite_steps_ += step_is_finite_ ? 0 : 1;
  step_is_finite_ = true;
}

std::unique_ptr<Compressor::Job> Compressor::begin(at::Tensor bucket, std::vector<Slot> slots,
                                                   std::optional<double> divisor, Clock::time_point ready) {
  const std::lock_guard lock(mutex_);
  if (exchange_ == Exchange::planned) first_ready_ = std::min(first_ready_, ready);
  dense_bytes_ += ring_bytes(bucket.is_sparse() ? bucket._values().nbytes() : bucket.nbytes());
  if (host_ && bucket.is_sparse()) {
    fail(ErrorCode::unsupported, "comm.compressor",
         "a sparse gradient is not cut into the ranges that ranks of a host own: let the layer have dense gradients ",
         "(sparse=False), or leave ranks_per_host out");
  }
  if (collective_ == Collective::reduce_to_owners && bucket.is_sparse()) {
    fail(ErrorCode::unsupported, "comm.compressor",
         "a sparse gradient is not cut into what ranks own: let the layer have dense gradients (sparse=False)");
  }
  auto job = std::make_unique<Job>();
  if (bucket.is_complex()) {
    bucket = at::view_as_real(bucket).view(-1);
    for (Slot& slot : slots) slot.offset *= 2;
  }
  job->bucket = bucket;
  if (!bucket.is_sparse()) {
    job->slots = std::move(slots);
  }
  job->plan = plan_;
  job->divisor = divisor.value_or(all_ranks());
  job->gradient_scale = gradient_scale_;
  job->is_planned = exchange_ == Exchange::planned;
  if (exchange_ == Exchange::nothing) {
    keep_gradients(*job);
    return job;
  }
  const AutoPlan::Turn turn = job->is_planned ? choose_plan(*job) : AutoPlan::Turn{0, false};
  job->is_encoded =
      !bucket.is_sparse() && (host_ || collective_ == Collective::reduce_to_owners ||
                              (job->is_planned && (in_momentum_phase_ || job->is_owed || has_encoded(job->slots))));
  if (!bucket.is_sparse()) job->values = takes_as_it_is(*job) ? bucket : bucket.to(at::kFloat);
  if (job->is_planned) {
    for (const Slot& slot : job->slots) state_.bring(slot.parameter);
    mix_own_momenta(*job);
    add_own_updates(*job);
  }
  expect_any_plan(job->slots);
  job->schedule = take_schedule(*job);
  std::vector<Contribution> tensors = contributions(*job);
  const std::uint64_t digest = digest_of(*job, tensors);
  if (measures_ && job->is_encoded) job->contributed.emplace(job->values, tensors, *wire_);
  const PhaseSeconds before = seconds_;
  job->schedule->begin({bucket, std::move(tensors), job->divisor, digest});
  if (turn.is_alone) {
    for (int next = 1; next < transfers(*job); ++next) job->schedule->advance();
    job->outcome = job->schedule->finish();
    auto_->record(std::chrono::duration<double>(ready - first_ready_).count(), seconds_ - before);
  }
  return job;
}

/// Under `auto`: makes its choice for a bucket that of the bucket's parameters.
AutoPlan::Turn Compressor::choose_plan(Job& job) {
  if (!auto_) return {0, false};
  std::vector<std::size_t> indices;
  for (const Slot& slot : job.slots) indices.push_back(slot.parameter);
  const AutoPlan::Turn turn = auto_->next_bucket(indices, static_cast<std::uint64_t>(job.bucket.numel()));
  for (const std::size_t index : indices) {
    const ParameterPlan& plan = plan_->of(parameters_[index].info.name);
    if (plan.choices) parameters_[index].plan = &(*plan.choices)[turn.plan];
    job.is_owed |= owes(index);
  }
  return turn;
}

void Compressor::advance(Job& job) {
  const std::lock_guard lock(mutex_);
  job.schedule->advance();
}

void Compressor::finish(std::unique_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  const Outcome outcome = job->outcome ? *job->outcome : job->schedule->finish();
  step_is_finite_ &= outcome.finite;
  if (verdict_) verdict_->tell(outcome.finite);
  const float scale = job->gradient_scale;
  for (std::size_t i = 0; i < job->slots.size(); ++i) {
    Parameter& parameter = parameters_[job->slots[i].parameter];
    const bool is_unscaled = job->is_planned && parameter.sends_own();
    const float power = is_unscaled ? outcome.power[i] : outcome.power[i] / (scale * scale);
    parameter.power = outcome.power[i] == 0 ? 0.0F : std::max(power, rules::kLeastPower);
    parameter.packed = outcome.packed.empty() ? PackedFigures() : outcome.packed[i];
    if (parameter.compares()) compared_ += parameter.packed;
    state_.keep(job->slots[i].parameter, outcome.power[i] != 0);  // else nothing was sent
  }
  if (job->is_planned) {
    keep_averages(*job);
    for (const Slot& slot : job->slots) state_.send_home(slot.parameter);
  }
  if (measures_) measure(*job);
  if (job->is_encoded) {  // else the results are in the bucket, in its own units
    if (scale != 1.0F) result_of(job->values).mul_(scale);
    if (!job->values.is_same(job->bucket)) result_of(job->bucket).copy_(result_of(job->values));
    wait_for_current_stream(job->bucket.device());
    take_sample(*job);
  }
  if (job->schedule) idle(*job).push_back(std::move(job->schedule));
  if (job->is_planned) last_done_ = Clock::now();
}

/// Before results are scaled as the gradients are.
void Compressor::measure(Job& job) {
  std::vector<MeasuredLoss> losses(job.slots.size(), {0.0F, 1.0F});  // of what travels as it is
  if (job.contributed) losses = job.contributed->compare(*wire_, job.divisor, job.values);
  for (std::size_t i = 0; i < job.slots.size(); ++i) {
    Parameter& parameter = parameters_[job.slots[i].parameter];
    if (parameter.plan->momentum() || parameter.power == 0) continue;
    parameter.loss = losses[i];
    const bool is_mean = codecs_of(parameter).up->traits().keeps_magnitude && !parameter.over_hits();
    if (!is_mean) parameter.loss.relative_error.reset();
  }
}

void Compressor::reduce(at::Tensor bucket, std::vector<Slot> slots, std::optional<double> divisor) {
  auto job = begin(std::move(bucket), std::move(slots), divisor);
  for (int next = 1; next < transfers(*job); ++next) advance(*job);
  finish(std::move(job));
}

/// Replaces the gradients of parameters that keep a momentum of their own by the updates that it makes of them, in
/// unscaled units, before anything else is done with them.
void Compressor::mix_own_momenta(const Job& job) {
  const rules::MomentumMix mix = momentum_mix(own_betas_.update_beta, own_betas_.kept_beta, job.gradient_scale);
  const c10::Device device = job.values.defined() ? job.values.device() : c10::kCPU;
  for (const Slot& slot : job.slots) {
    const Parameter& parameter = parameters_[slot.parameter];
    if (!parameter.keeps_momentum) continue;
    const std::uint64_t count = parameter.info.count;
    Versioned& momentum = state_.at(slot.parameter, kOwnMomentum);
    mix_momentum(device, mix, count, job.values.mutable_data_ptr<float>() + slot.offset,
                 momentum.now_or_zeros<float>(count, device), momentum.next<float>(count, device));
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

/// A bucket of which nothing is sent. The powers that ranks would have to agree on are 0.
void Compressor::keep_gradients(Job& job) const {
  const at::Tensor& bucket = job.bucket;
  wait_for_current_stream(bucket.device());
  const bool finite = all_finite(bucket.is_sparse() ? bucket._values() : bucket);
  job.outcome = Outcome{finite, std::vector<float>(job.slots.size())};
}

/// The part of a bucket where the averages are.
at::Tensor Compressor::result_of(const at::Tensor& bucket) const {
  if (collective_ != Collective::reduce_scatter) return bucket;
  const std::int64_t part = bucket.numel() / wire_->world_size();
  return bucket.narrow(0, wire_->rank() * part, part);
}

/// Room for what another rank sends of a bucket by whatever plan, so that one by another plan is told so.
void Compressor::expect_any_plan(const std::vector<Slot>& slots) {
  constexpr std::uint64_t kLongestHeader = 4096, kLongestValue = sizeof(double);
  std::uint64_t values = 0, tensors = 0;
  const auto add = [&](const Parameter& parameter) {
    values += parameter.info.ownership.share(parameter.info.count, wire_->world_size());
    ++tensors;
  };
  for (const Slot& slot : slots) add(parameters_[slot.parameter]);
  if (slots.empty())
    std::ranges::for_each(parameters_, add);  // a sparse gradient, of which others may have a dense one
  wire_->expect(kLongestHeader + sizeof(float) * tensors + kLongestValue * values);
}

std::vector<Contribution> Compressor::contributions(const Job& job) {
  std::vector<Contribution> tensors;
  for (const Slot& slot : job.slots) {
    std::byte* const in_bucket =
        static_cast<std::byte*>(job.values.mutable_data_ptr()) + slot.offset * job.values.itemsize();
    tensors.push_back(contribution(slot.parameter, slot.apart ? slot.apart : in_bucket, job.values.device()));
    tensors.back().dtype = job.values.scalar_type();
    if (collective_ == Collective::reduce_to_owners) tensors.back().up = without_loss(tensors.back());
    if (collective_ != Collective::reduce_scatter) continue;
    const std::uint64_t share = tensors.back().ownership.share(tensors.back().count, wire_->world_size());
    tensors.back().share = std::max<std::uint64_t>(1, share);
    tensors.back().stride = static_cast<std::uint64_t>(job.values.numel()) / static_cast<unsigned>(wire_->world_size());
  }
  return tensors;
}

std::uint64_t Compressor::digest_of(const Job& job, const std::vector<Contribution>& tensors) const {
  std::uint64_t digest = rules::seeded_key(rules::derive_key(step_, in_momentum_phase_ ? 1 : 0), seed_);
  if (measures_) digest = rules::derive_key(digest, 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = parameters_[job.slots[i].parameter];
    if (parameter.sends_own()) digest = rules::derive_key(digest, parameter.keeps_momentum ? 1 : 2);
    for (const Codec* codec : {tensors[i].up, tensors[i].down}) {
      digest = rules::derive_key(digest, codec->fingerprint());
    }
    if (tensors[i].over_hits) digest = rules::derive_key(digest, 1);
    digest = rules::derive_key(digest, mapping_digest(tensors[i].mapping));
    digest = rules::derive_key(digest, job.slots[i].parameter);
    digest = rules::derive_key(digest, tensors[i].memory->digest());
  }
  return digest;
}

std::vector<std::unique_ptr<Schedule>>& Compressor::idle(const Job& job) {
  return (job.is_encoded ? idle_encoding_ : idle_dense_)[job.bucket.device()];
}

std::unique_ptr<Schedule> Compressor::take_schedule(const Job& job) {
  auto& free = idle(job);
  if (!free.empty()) {
    std::unique_ptr<Schedule> schedule = std::move(free.back());
    free.pop_back();
    return schedule;
  }
  const c10::Device device = job.bucket.device();
  if (host_) return std::make_unique<Hierarchical>(*host_, *wire_, seconds_, device);
  if (scatters() && job.is_encoded) return std::make_unique<OnePhase>(*wire_, seconds_, device);
  if (scatters()) return std::make_unique<ReduceScatterSum>(*wire_, device);
  if (job.is_encoded) return std::make_unique<LinearSum>(*wire_, seconds_, device);
  return std::make_unique<AllReduceSum>(*wire_, seconds_, device);
}

/// Whether the gradients of a bucket, of whatever dtype, are read and written where they lie: float32 always, others
/// part by part. What looks at a whole tensor at a time needs all of it as float32, and so does what would lose digits
/// of results that are scaled afterwards or compared, or of hosts' means.
bool Compressor::takes_as_it_is(const Job& job) const {
  if (job.bucket.scalar_type() == at::kFloat || !job.is_encoded) return true;
  return !host_ && !measures_ && job.gradient_scale == 1.0F &&
         std::none_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
           const Parameter& parameter = parameters_[slot.parameter];
           const auto [up, down] = codecs_of(parameter);
           const bool is_cut = std::max(up->traits().granule, down->traits().granule) < kUncut;
           return parameter.sends_own() || map_of(parameter) || !is_cut;
         });
}

bool Compressor::takes_apart(at::ScalarType dtype) const {
  const std::lock_guard lock(mutex_);
  if (collective_ != Collective::reduce_to_owners || !at::isFloatingType(dtype)) return false;
  if (exchange_ != Exchange::planned || in_momentum_phase_ || measures_ || measures_next_) return false;
  return gradient_scale_ == 1.0F && std::ranges::all_of(parameters_, [&](const Parameter& parameter) {
           const auto [up, down] = codecs_of(parameter);
           return !map_of(parameter) &&
                  (dtype == at::kFloat || std::max(up->traits().granule, down->traits().granule) < kUncut);
         });
}

/// Whether a bucket's parameters are sent encoded, exempt ones too: where the plan of any is not dense.
bool Compressor::has_encoded(const std::vector<Slot>& slots) const {
  return std::any_of(slots.begin(), slots.end(),
                     [&](const Slot& slot) { return !parameters_[slot.parameter].plan->dense(); });
}

/// Whether `auto` has gone from a plan with feedback to one without: the next step then sends what is owed, in float32.
bool Compressor::owes(std::size_t index) {
  const Parameter& parameter = parameters_[index];
  if (!auto_ || parameter.plan->feedback || !plan_->of(parameter.info.name).choices) return false;
  return state_.at(index, kWorkerResidual).tensor().defined() || state_.at(index, kOwnerResidual).tensor().defined();
}

/// Replaces numbers by rank 0's.
void Compressor::tell(std::vector<std::int64_t>& numbers) {
  at::Tensor sum = at::zeros({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  auto* const values = sum.mutable_data_ptr<std::int64_t>();
  if (rank() == 0) std::copy(numbers.begin(), numbers.end(), values);
  wire_->all_reduce(sum);
  std::copy_n(sum.const_data_ptr<std::int64_t>(), numbers.size(), numbers.begin());
}

ParameterPlan::Codecs Compressor::codecs_of(const Parameter& parameter) const {
  if (parameter.info.exempt) return {&block_coding(BlockCodec::fp32), &block_coding(BlockCodec::fp32)};
  return scatters() ? parameter.plan->kept_at(step_) : parameter.plan->at(step_);
}

/// Null for a parameter that travels as it is.
const LinearMap* Compressor::map_of(const Parameter& parameter) const {
  const LinearMap* const map = parameter.info.exempt ? nullptr : parameter.plan->map_at(step_);
  return map && !map->image_sizes(shape_of(parameter), step_).empty() ? map : nullptr;
}

Mapping Compressor::mapping(std::size_t index) {
  const Parameter& parameter = parameters_[index];
  const LinearMap* const map = map_of(parameter);
  if (!map) return {};
  if (Versioned& of_warm_up = state_.at(index, kVelocity); of_warm_up.tensor().defined()) of_warm_up.clear();
  const bool error_feedback = parameter.plan->feedback != nullptr;
  Versioned* const residual = error_feedback && map->needs_residual() ? &state_.at(index, kResidual) : nullptr;
  const auto momentum = static_cast<float>(parameter.plan->momentum().value_or(0));
  return {map, shape_of(parameter), step_, error_feedback, residual, &state_.at(index, kMapMemory), seed_, momentum};
}

Contribution Compressor::contribution(std::size_t index, void* values, c10::Device device) {
  Parameter& parameter = parameters_[index];
  const bool owed = parameter.has_sent_owed = exchange_ == Exchange::planned && owes(index);
  auto [up, down] = codecs_of(parameter);
  if (owed) up = down = &block_coding(BlockCodec::fp32);
  Contribution tensor{values, parameter.info.count, up, down};
  tensor.owner_keeps_sum = scatters();
  tensor.ownership = parameter.info.ownership;
  if (parameter.momentum.mean.defined()) {
    tensor.momentum = readable_on(device, parameter.momentum.mean, "a momentum");
    tensor.preconditioner = readable_on(device, parameter.momentum.preconditioner, "a preconditioner");
    tensor.gradient_weight = static_cast<float>(1.0 - beta_);
    tensor.momentum_weight = static_cast<float>(beta_);
  }
  if (!parameter.sends_own()) tensor.gradient_weight /= gradient_scale_;
  tensor.mapping = mapping(index);
  tensor.memory = parameter.plan->feedback || owed ? parameter.memory : Memory::none();
  tensor.over_hits = parameter.over_hits();
  tensor.codes_own = parameter.codes_own();
  tensor.owed_share = owed_share_;
  tensor.step = step_;
  tensor.rounding_key = rules::seeded_key(rounding_key(step_, index, wire_->rank()), seed_);
  tensor.shared_key = rules::seeded_key(rules::derive_key(step_, index), seed_);
  return tensor;
}

}  // namespace octavo
