// SPDX-License-Identifier: Apache-2.0
// Compressor: how a bucket of gradients becomes averages.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/finite.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/gradient_power.h"

namespace octavo {

std::unique_ptr<Compressor::Job> Compressor::begin(at::Tensor bucket, std::vector<Slot> slots,
                                                   std::optional<double> divisor, Clock::time_point ready) {
  const std::lock_guard lock(mutex_);
  require_fits(bucket, slots);
  require_first_use(slots);
  require_divisor(divisor);
  count_bucket(bucket, slots, ready);
  auto job = job_of(std::move(bucket), std::move(slots), divisor);
  if (exchange_ == Exchange::nothing) {
    keep_gradients(*job);
    return job;
  }
  const AutoPlan::Turn turn = job->is_planned ? choose_plan(*job) : AutoPlan::Turn{0, false};
  job->is_encoded = is_sent_encoded(*job);
  take_values(*job);
  const PhaseSeconds before = schedules_.seconds();
  start(*job);
  if (turn.is_alone) {
    finish_alone(*job);
    auto_->record(std::chrono::duration<double>(ready - first_ready_).count(), schedules_.seconds() - before);
  }
  return job;
}

/// Notes that the step has this bucket.
void Compressor::count_bucket(const at::Tensor& bucket, const std::vector<Slot>& slots, Clock::time_point ready) {
  for (const Slot& slot : slots) parameters_[slot.parameter].last_used = steps_here_;
  ++jobs_under_way_;
  if (exchange_ != Exchange::nothing) clips_.count_bucket();
  if (exchange_ == Exchange::planned) first_ready_ = std::min(first_ready_, ready);
  dense_bytes_ += ring_bytes(bucket.is_sparse() ? bucket._values().nbytes() : bucket.nbytes());
}

/// Makes a job of a bucket, of which nothing has been done yet.
std::unique_ptr<Compressor::Job> Compressor::job_of(at::Tensor bucket, std::vector<Slot> slots,
                                                    std::optional<double> divisor) const {
  auto job = std::make_unique<Job>();
  if (bucket.is_complex()) {
    bucket = at::view_as_real(bucket).view(-1);
    for (Slot& slot : slots) slot.offset *= 2;
  }
  if (!bucket.is_sparse()) job->slots = std::move(slots);
  job->bucket = std::move(bucket);
  job->plan = plan_;
  job->divisor = divisor.value_or(rank_count());
  job->gradient_scale = gradient_scale_;
  job->is_planned = exchange_ == Exchange::planned;
  return job;
}

bool Compressor::is_sent_encoded(const Job& job) const {
  if (job.bucket.is_sparse()) return false;
  if (host_ || collective_ == Collective::reduce_to_owners) return true;
  return job.is_planned && (momenta_.any() || job.sends_residuals || has_encoded(job.slots));
}

/// Sets the values that the schedule gets: the gradients, or what is sent in their place.
void Compressor::take_values(Job& job) {
  if (!job.bucket.is_sparse()) job.values = takes_as_it_is(job) ? job.bucket : job.bucket.to(at::kFloat);
  if (!job.is_planned) return;
  for (const Slot& slot : job.slots) state_.prefetch(slot.parameter);
  momenta_.replace_gradients(job.values, job.slots, job.gradient_scale);
}

/// Starts the first transfer.
void Compressor::start(Job& job) {
  expect_any_plan(job.slots);
  const std::uint64_t bytes = job.bucket.is_sparse() ? 0 : job.bucket.nbytes();
  job.schedule = schedules_.take(job.bucket.device(), job.is_encoded, bytes);
  std::vector<Contribution> tensors = contributions(job);
  const std::uint64_t digest = digest_of(job, tensors);
  if (measures_this_step_ && job.is_encoded) job.contributed.emplace(job.values, tensors, *wire_);
  job.schedule->begin({job.bucket, std::move(tensors), job.divisor, digest});
}

/// Makes the remaining transfers of a bucket that `auto` measures alone.
void Compressor::finish_alone(Job& job) {
  for (int next = 1; next < transfers(job); ++next) job.schedule->advance();
  job.outcome = job.schedule->finish();
}

/// Lets `auto` choose the plan of a bucket, which becomes the plan of the bucket's parameters.
AutoPlan::Turn Compressor::choose_plan(Job& job) {
  if (!auto_) return {0, false};
  std::vector<std::size_t> indices;
  for (const Slot& slot : job.slots) indices.push_back(slot.parameter);
  const AutoPlan::Turn turn = auto_->next_bucket(indices, static_cast<std::uint64_t>(job.bucket.numel()));
  for (const std::size_t index : indices) {
    const ParameterPlan& plan = plan_->of(parameters_[index].info.name);
    if (plan.choices) parameters_[index].plan = &(*plan.choices)[turn.plan];
    job.sends_residuals |= has_residuals_of_earlier_choice(index);
  }
  common_.reset();
  return turn;
}

void Compressor::advance(Job& job) {
  const std::lock_guard lock(mutex_);
  if (!is_to_advance(job)) {
    fail(ErrorCode::invalid_argument, kCompressorWhere, "the job has ", transfers(job),
         " transfers, and the last one is under way: call finish()");
  }
  job.schedule->advance();
  ++job.advanced;
}

void Compressor::finish(std::unique_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (!job || is_to_advance(*job)) {
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected a job of begin() that advance() was called for ",
         job ? c10::str(transfers(*job) - 1, " times, got ", job->advanced) : "before, got none");
  }
  const Outcome outcome = job->outcome ? *job->outcome : job->schedule->finish();
  keep_figures(*job, outcome);
  if (job->is_planned) {
    momenta_.keep_averages(job->values, job->slots);
    for (const Slot& slot : job->slots) state_.evict(slot.parameter);
  }
  if (measures_this_step_) measure(*job);
  if (job->is_encoded) write_results(*job);  // else the results are in the bucket, in its own units
  verdict_.report(outcome.finite && fits_dtype(*job));
  if (jobs_under_way_ > 0) --jobs_under_way_;
  if (job->schedule) schedules_.give_back(std::move(job->schedule), job->bucket.device(), job->is_encoded);
  if (job->is_planned) last_done_ = Clock::now();
}

/// Keeps what the outcome says of each parameter.
void Compressor::keep_figures(const Job& job, const Outcome& outcome) {
  const float scale = job.gradient_scale;
  for (std::size_t i = 0; i < job.slots.size(); ++i) {
    const std::size_t index = job.slots[i].parameter;
    Parameter& parameter = parameters_[index];
    const bool is_unscaled = job.is_planned && momenta_.sends_own(index);
    const float power = is_unscaled ? outcome.power[i] : outcome.power[i] / scale / scale;
    parameter.power = outcome.power[i] == 0 ? 0.0F : std::max(power, rules::kLeastPower);
    parameter.packed = outcome.packed.empty() ? PackedFigures() : outcome.packed[i];
    if (parameter.compares()) compared_ += parameter.packed;
    state_.set_sent(index, outcome.power[i] != 0);
  }
}

/// Writes the averages to the bucket, in its own dtype and scale.
void Compressor::write_results(const Job& job) {
  if (job.gradient_scale != 1.0F) result_of(job.values).mul_(job.gradient_scale);
  if (!job.values.is_same(job.bucket)) result_of(job.bucket).copy_(result_of(job.values));
  wait_for_current_stream(job.bucket.device());
  momenta_.take_sample(job.bucket, job.slots);
}

void Compressor::reduce(at::Tensor bucket, std::vector<Slot> slots, std::optional<double> divisor) {
  auto job = begin(std::move(bucket), std::move(slots), divisor);
  while (is_to_advance(*job)) advance(*job);
  finish(std::move(job));
}

/// Makes the outcome of a bucket that is not sent. Powers are 0, because ranks would have to agree on them.
void Compressor::keep_gradients(Job& job) const {
  const at::Tensor& bucket = job.bucket;
  wait_for_current_stream(bucket.device());
  const bool finite = all_finite(bucket);
  job.outcome = Outcome{finite, std::vector<float>(job.slots.size())};
}

/// Returns the part of a bucket that holds the averages.
at::Tensor Compressor::result_of(const at::Tensor& bucket) const {
  if (collective_ != Collective::reduce_scatter) return bucket;
  const std::int64_t part = bucket.numel() / wire_->world_size();
  return bucket.narrow(0, wire_->rank() * part, part);
}

/// Whether the averages, which were computed in float32, are finite in the bucket's dtype, too. A dense bucket was
/// already checked in its own dtype.
bool Compressor::fits_dtype(const Job& job) const {
  if (!job.is_encoded || job.bucket.scalar_type() != at::kHalf) return true;
  const at::Tensor results = result_of(job.bucket.view(-1));
  const bool stays_in_place = collective_ == Collective::reduce_to_owners;
  std::vector<at::Tensor> averages;
  for (const Slot& slot : job.slots) {
    const ParameterInfo& info = parameters_[slot.parameter].info;
    const Range own =
        scatters() ? owned_range(info.count, wire_->rank(), wire_->world_size(), info.ownership) : Range{0, info.count};
    const auto first = static_cast<std::int64_t>(stays_in_place ? own.first : 0);
    const auto count = static_cast<std::int64_t>(own.count);
    averages.push_back(slot.apart != nullptr
                           ? at::from_blob(static_cast<at::Half*>(slot.apart) + first, count, at::kHalf)
                           : results.narrow(0, static_cast<std::int64_t>(slot.offset) + first, count));
  }
  return all_finite(averages);
}

/// Whether both codecs of a parameter work part by part.
bool Compressor::is_cut(const Parameter& parameter) const {
  const auto [up, down] = codecs_of(parameter);
  return std::max(up->traits().granule, down->traits().granule) < kUncut;
}

/// Whether the gradients of a bucket, of whatever dtype, are read and written where they lie: float32 always, other
/// dtypes part by part. A codec or a map that looks at a whole tensor at a time needs all of it as float32. Results
/// that are scaled afterwards or compared, and hosts' means, need float32, too, because they would lose digits in
/// another dtype.
bool Compressor::takes_as_it_is(const Job& job) const {
  if (job.bucket.scalar_type() == at::kFloat || !job.is_encoded) return true;
  return !host_ && !measures_this_step_ && job.gradient_scale == 1.0F &&
         std::none_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
           const Parameter& parameter = parameters_[slot.parameter];
           return momenta_.sends_own(slot.parameter) || map_of(parameter) || !is_cut(parameter);
         });
}

bool Compressor::takes_apart(at::ScalarType dtype) const {
  const std::lock_guard lock(mutex_);
  if (collective_ != Collective::reduce_to_owners || !at::isFloatingType(dtype)) return false;
  if (momenta_.any() || measures_this_step_ || measures_next_step_ || gradient_scale_ != 1.0F) return false;
  if (!common_) common_ = common_traits();
  return dtype == at::kFloat ? common_->are_unmapped : common_->are_unmapped && common_->are_cut;
}

Compressor::CommonTraits Compressor::common_traits() const {
  CommonTraits all;
  for (const Parameter& parameter : parameters_) {
    all.are_unmapped &= map_of(parameter) == nullptr;
    all.are_cut &= is_cut(parameter);
  }
  return all;
}

/// Whether a bucket's parameters are sent encoded, exempt ones too: this is so where the plan of any is not dense.
bool Compressor::has_encoded(const std::vector<Slot>& slots) const {
  return std::any_of(slots.begin(), slots.end(),
                     [&](const Slot& slot) { return !parameters_[slot.parameter].plan->dense(); });
}

}  // namespace octavo
