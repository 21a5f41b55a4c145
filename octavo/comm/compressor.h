// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "octavo/comm/auto_plan.h"
#include "octavo/comm/clip_history.h"
#include "octavo/comm/compressor_options.h"
#include "octavo/comm/compressor_stats.h"
#include "octavo/comm/measured_loss.h"
#include "octavo/comm/plan.h"
#include "octavo/comm/schedule/schedule_pool.h"
#include "octavo/comm/sent_momenta.h"
#include "octavo/comm/state/state_store.h"
#include "octavo/comm/verdict.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

inline constexpr const char* kCompressorWhere = "comm.compressor";  // the place in its errors

/// Averages gradients over the ranks by a plan, and keeps what must be remembered from step to step, by parameter.
///
/// A step is all the buckets between two calls of begin_step(): a NaN or an infinity anywhere in it makes all of its
/// residuals stay as they were. Thread-safe; a call may wait for one that waits for a peer, up to the timeout. All
/// ranks must call begin(), advance() and finish() in the same order. State may be set, loaded or dropped only between
/// steps, when no job is under way.
class OCTAVO_API Compressor {
 public:
  /// All ranks give the same plan, seed and parameters. A C++ program that is not sure of it calls
  /// require_same_on_all_ranks(): buckets of `dense`, which have no headers, of other sizes end a process over Gloo.
  /// Throws Error invalid_argument where a rule of the plan fits no parameter, two parameters have one name, or the
  /// plan does not fit the ranks, and what StateMemory throws.
  Compressor(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<ParameterInfo> parameters,
             CompressorOptions options = {});
  ~Compressor();

  /// Throws Error communication where peers (peer_count()) differ in their plan, seed or parameters. All ranks must
  /// call it, before the first step.
  void require_same_on_all_ranks();

  /// Ends the previous step (commits or rolls back its residuals) and begins one. Under `auto` the ranks may exchange a
  /// few numbers here. `mark` is a number of the caller's: ranks that give other marks for a step get Error
  /// communication from its buckets. Throws what Wire throws.
  void begin_step(std::uint64_t mark = 0);
  /// Ends the current step now, not at the next begin_step(), and returns whether it was finite. A step with a job
  /// under way is abandoned, here and by any other call that ends a step. The answer is the same on all ranks, unless
  /// nothing was sent in the step: each rank then knows only its own gradients. Until the next begin_step() further
  /// calls return the same answer. Throws what Wire throws.
  bool end_step();
  /// Whether buckets may come: a step was begun and has not ended.
  bool is_in_step() const;
  /// Whether the step under way has had a bucket with the parameter. Throws Error invalid_argument for the index of no
  /// parameter.
  bool was_in_bucket(std::size_t parameter) const;
  /// Ends a step that was broken off and rolls back its residuals. Call it before anybody is told of the failure.
  void abandon_step();
  /// Rolls back the residuals of the step under way, which is complete and whose results are not used: nothing of it
  /// comes back in later steps. It counts as finite where it was. All ranks must call it for the same step, before the
  /// step ends. Throws Error invalid_argument if a finite step has already ended.
  void drop_step();
  /// Drops the step, or all residuals where a finite step has ended, which has committed what it left out. Either way
  /// nothing of it comes back in later steps. All ranks must call it.
  void drop_step_or_residuals();
  /// Says that the results of all steps since the last call are multiplied by `factor`, as a clip of their norm does,
  /// before the last one has ended. Residuals would bring back in full what the results lost by the factor: where it
  /// is less than half of the usual one (ClipHistory), as after a burst of the gradient, they are rolled back. They are
  /// dropped after several steps, of which one may have sent a part of what another had left out, and after a call that
  /// has ended the step. Several calls between two steps are one, by the product of their factors. The first
  /// call never counts as a burst, because no usual factor is known yet. All ranks must call it, with the same factor.
  /// Throws Error invalid_argument for a factor outside [0, 1].
  void scale_step(double factor);

  /// Sets what ranks exchange from the next step on. It must be the same on all ranks: ranks that differ wait for one
  /// another until the deadline. With `gradients` and `nothing`, residuals and momenta are not used and not changed.
  /// With `nothing`, gradient_powers() returns zeros. Throws Error unsupported for these two with fully_shard, ZeRO and
  /// ranks_per_host.
  void set_exchange(Exchange exchange);
  Exchange exchange() const;

  /// A bucket of gradients (floating, or complex and dense) while it is replaced by the average over all ranks; while
  /// momenta are set, by the average of beta*momentum + (1-beta)*(gradient*preconditioner). Its device's kernels do the
  /// work, on the current stream; the residuals are kept on the device.
  class Job {
    friend class Compressor;
    at::Tensor bucket;  // real numbers
    /// What schedules read and write: the bucket, or a copy in float32; undefined for a sparse bucket.
    at::Tensor values;
    std::vector<Slot> slots;
    std::shared_ptr<const Plan> plan;  // owns the codecs
    double divisor = 1;
    float gradient_scale = 1.0F;
    bool is_encoded = false;
    bool is_planned = true;        // its step's exchange is Exchange::planned
    bool sends_residuals = false;  // in full, those that an earlier plan has left
    std::unique_ptr<Schedule> schedule;
    std::optional<ContributedBucket> contributed;  // in a step that is measured
    std::optional<Outcome> outcome;                // where begin() has done everything
    int advanced = 0;                              // calls of advance()
  };
  using Clock = std::chrono::steady_clock;
  /// Starts the bucket's first transfer. advance(), called transfers() - 1 times, and finish() then complete it.
  /// Several jobs may be under way. `divisor`: of the sum over ranks; the number of ranks where it is not given. For a
  /// reduce-scatter the offsets of slots are those in each of the bucket's parts, and only this rank's part becomes the
  /// result. `ready`: when the bucket was handed over, from which `auto` sees what is hidden behind backward. Where
  /// `auto` measures a bucket alone, all of the work is done here. Throws Error unsupported for a device without
  /// kernels. Throws Error invalid_argument for a bucket of another dtype or not in row-major order, a slot that does
  /// not lie within it, a parameter that the step has had already, a divisor that is not above 0, and outside of a
  /// step.
  std::unique_ptr<Job> begin(at::Tensor bucket, std::vector<Slot> slots, std::optional<double> divisor = std::nullopt,
                             Clock::time_point ready = Clock::now());
  /// Throws Error invalid_argument where no transfer is left to start.
  void advance(Job& job);
  /// Throws Error invalid_argument where advance() is still to be called; the job is then lost, and the step must be
  /// abandoned.
  void finish(std::unique_ptr<Job> job);
  /// Whether slots of this step's next buckets may lie apart (Slot::apart): gradients on the CPU, of a floating dtype,
  /// whose averages owners get (reduce_to_owners), as long as a bucket is only sent and nothing else is done with it.
  bool takes_apart(at::ScalarType dtype) const;
  static int transfers(const Job& job) { return job.outcome ? 1 : job.schedule->transfers(); }
  /// Whether advance() is still to be called before finish().
  static bool is_to_advance(const Job& job) { return job.advanced < transfers(job) - 1; }
  /// Does all of the above for one bucket.
  void reduce(at::Tensor bucket, std::vector<Slot> slots, std::optional<double> divisor = std::nullopt);

  Plan plan() const;
  /// Sets the plan from the next step on. What is remembered is kept where the new plan has the same kind of it
  /// (state/state_store.h: Role), and for a linear map where that stays the same; all else is dropped. `auto` sends the
  /// residuals that it finds. Throws Error invalid_argument where a rule fits no parameter, for `auto` elsewhere than
  /// with DDP, and, while momenta are sent, for a plan that votes where they are averaged, that keeps a momentum
  /// itself, or that is `auto`.
  void set_plan(const Plan& plan);

  /// Begins the momentum phase of 1-bit Adam, or ends it where there are no momenta. `momenta`: by parameter name,
  /// float32 on the parameter's device, equal on all ranks, in the memory order of the parameter. They are shared, not
  /// copied: their owner updates them between steps. A parameter without a momentum continues with its gradient.
  /// Residuals of gradients say nothing of momenta, which have another magnitude: the next begin_step() drops those of
  /// the other kind. Throws Error invalid_argument for an unknown name, a wrong size, a beta outside [0, 1) and a plan
  /// that votes, keeps a momentum itself or is `auto`; unsupported where ranks have shards of the averages.
  void set_momentum(const std::map<std::string, SentMomenta::Momentum>& momenta, double beta);

  /// Begins the phase of Signum and Distributed Lion, or ends it where there are no names. Each rank sends the update
  /// that its own momentum makes of its gradient, update_beta*m + (1-update_beta)*gradient, and keeps kept_beta*m +
  /// (1-kept_beta)*gradient as its next momentum. The result is what the plan makes of the updates: the majority's
  /// signs under a plan that votes, else their average. Powers are then those of the updates. The momenta are per-rank
  /// state, float32, zero at first. They are committed, rolled back, saved and loaded with the residuals, as
  /// "momentum/NAME"; those of parameters that are not named are dropped. A parameter that is not named continues with
  /// its gradient. This phase ends that of set_momentum, and is ended by it. Throws Error invalid_argument for an
  /// unknown name, a beta outside [0, 1) and a plan that keeps a momentum itself or is `auto`; unsupported where ranks
  /// have shards of the averages, and with hosts.
  void keep_own_momenta(const std::vector<std::string>& names, SentMomenta::OwnBetas betas);

  /// Begins the phase of 0/1 Adam, or ends it where there are no preconditioners. In a step whose exchange is planned
  /// each rank sends update + step_size*(beta*m + (1-beta)*(gradient*preconditioner)). Once the step has ended and was
  /// finite, `update` is what came back, the same on all ranks. `preconditioners`: by parameter name, as in
  /// set_momentum. The momenta and updates are per-rank state, float32, zero at first. They are saved, loaded and
  /// redistributed with the residuals, as "momentum/NAME" and "update/NAME". It is ended as the phase of
  /// keep_own_momenta, and throws as that does, also for a plan that votes, and unsupported between replicas of shards.
  void keep_own_updates(const std::map<std::string, at::Tensor>& preconditioners, double beta);
  /// Sets the step sizes of the next steps, by parameter name. Other parameters keep theirs, which is 0 when the phase
  /// begins. Throws Error invalid_argument for a parameter without a preconditioner.
  void set_step_sizes(const std::map<std::string, double>& step_sizes);
  /// Returns the momenta and updates by parameter name, flat, in the memory order and on the device of the
  /// preconditioner. The tensors are this object's own, for the optimizer to change between steps: call it again after
  /// every step that was sent, and after a load.
  std::map<std::string, SentMomenta::OwnUpdate> own_updates();
  /// Makes a step without gradients, outside of backward: the ranks average `update` of all parameters by the plan, in
  /// one bucket, whatever set_exchange() says of gradients. All ranks must call it. Returns whether the step was
  /// finite, as end_step() does. Throws what Wire throws.
  bool exchange_updates();

  /// Returns the sample. If `.grad` has other elements than the sample, the gradients were changed since the last step.
  SentMomenta::Sample momentum_sample() const;

  /// Says that from the next step on the gradients in the buckets are `scale` times the true ones, as a GradScaler
  /// makes them. Results are then `scale` times the average (or the momentum), while residuals, momenta and powers stay
  /// those of the true gradients, so that the scale may change between steps. Powers are infinite where the squares of
  /// scaled gradients leave float32. Throws Error invalid_argument unless the scale is positive, finite and normal in
  /// float32.
  void set_gradient_scale(double scale);

  /// Forgets what error feedback owes, on this rank. Call it on all ranks, between steps.
  void drop_residuals();

  /// Returns the mean square of each parameter's gradient in the last step, averaged over ranks (Outcome::power), in
  /// the order of the ParameterInfos. It is the same on all ranks, and 0 for a sparse gradient.
  std::vector<float> gradient_powers() const;

  /// Sets the share of what is owed that is added to gradients from now on; they are taken to hold the rest of it
  /// already (Contribution::owed_share). It is for a caller that keeps a part of what it has not sent. Throws Error
  /// invalid_argument outside of [0, 1].
  void set_owed_share(double share);

  /// Makes the next step compare its results with the exact means of what the ranks contribute: their gradients, or
  /// their momenta and own updates where these are sent. All ranks must call it before the same step. In that step the
  /// contributions to encoded buckets are sent once more, in float32. What is not encoded loses nothing but a rounding
  /// and is not measured. Where the plan keeps a momentum there are no figures, because results are then velocities;
  /// where it votes or averages over hits, there is no relative error. What error feedback owes of earlier steps is
  /// part of a result, and what it owes to later steps is missing from it: both count as an error of this step. Throws
  /// Error unsupported where ranks are grouped by hosts.
  void measure_next_step();

  /// Returns figures of this object. Waits for the other ranks' word on the last step where ranks keep shards.
  CompressorStats stats();
  /// Returns nothing under another plan than `auto`, or with one rank.
  std::optional<AutoStats> auto_stats() const;
  /// Returns the figures by parameter, in the order of the ParameterInfos. Residuals are those that the step under way
  /// leaves, if it is finite as far as other ranks were heard. It reads all residuals, so it is not for every step.
  std::vector<ParameterStats> parameter_stats();

  /// Ends the step under way and returns all that is remembered. The tensors are this object's own: copy them before
  /// the next step.
  CompressorState state();
  /// Replaces all that is remembered. What the plan in force at the next begin_step() does not use is dropped there.
  /// Throws Error invalid_argument for a key or a size that this model does not have; the state is then unchanged.
  void load_state(const CompressorState& state);
  /// Loads what all ranks of another world remembered, indexed by old rank, and redistributes it over this one
  /// (state/redistribute.h). Throws as load_state() does, also for states of several steps or seeds.
  void load_world(const std::vector<CompressorState>& world);
  /// Returns what this rank still owes of a parameter (Feedback::owed), as its next step will add it, for those
  /// elements of which it remembers something. What a step under way leaves out does not count until the step has
  /// ended. Call it before the next step begins.
  OwedByRange owed(std::size_t parameter);
  /// Returns the same from the CompressorState::tensors that rank `rank` of a world of `world_size` ranks had.
  OwedByRange owed_of(std::size_t parameter, const std::map<std::string, at::Tensor>& tensors, int rank,
                      int world_size) const;

  /// Returns the number of the current step, which is saved and restored with the state. CompressorStats::steps counts
  /// only the steps of this object.
  std::uint64_t step() const;

  std::size_t parameter_count() const { return parameters_.size(); }
  /// The ranks that exchange codes with this one, this one among them, and its number among these: all ranks or, with
  /// ranks_per_host, those of the same number on all hosts.
  int peer_rank() const { return wire_->rank(); }
  int peer_count() const { return wire_->world_size(); }

 private:
  struct Parameter {
    ParameterInfo info;
    const ParameterPlan* plan = nullptr;  // of plan_; under `auto` the plan of the current bucket
    std::uint64_t last_used = 0;          // the step of its last bucket, as steps_here_ counts
    std::uint64_t remembered_count = 0;   // elements that this rank remembers something of: its range on a host, or all
    std::shared_ptr<FeedbackMemory> memory = {};
    std::vector<Role> roles = {};  // what may be kept of it under plan_
    float power = 0;
    PackedFigures packed = {};  // of the last step (Outcome)
    MeasuredLoss loss = {};
    bool sends_residuals = false;  // in full, in this step

    bool over_hits() const { return plan->over_hits && !info.exempt; }
    bool codes_own() const { return codes_own_under(*plan); }
    bool codes_own_under(const ParameterPlan& one) const { return (one.over_hits || one.codes_own) && !info.exempt; }
    bool compares() const { return !info.exempt && plan->compares(); }
    /// Whether nothing is left to be sent of it once the step under way has ended and was finite.
    bool repays() const { return sends_residuals && power != 0; }
  };

  /// How a parameter follows a plan: the members of Parameter, and what goes on of what was kept until then.
  struct Following {
    const ParameterPlan* plan;
    std::shared_ptr<FeedbackMemory> memory = {};
    std::vector<Role> roles = {}, continued = {};
  };

  /// What the codecs of all parameters have in common in the current step.
  struct CommonTraits {
    bool are_unmapped = true;  // no linear map takes a whole tensor
    bool are_cut = true;       // all codecs work part by part
  };

  bool scatters() const { return collective_ != Collective::all_reduce; }
  /// Returns the wire to the ranks whose results are other ones; null: there are none.
  Wire* unlike_ranks() const { return shards_ ? shards_.get() : scatters() ? wire_.get() : nullptr; }
  int rank_count() const { return wire_->world_size() * (host_ ? host_->world_size() : 1); }
  std::vector<ParameterInfo> remembered(std::vector<ParameterInfo> parameters) const;

  // compressor_step.cpp
  void begin_step_of(Exchange exchange);
  void end_step_locked();
  void abandon_step_locked();
  void roll_back();
  void drop_residuals_locked();
  void drop_residuals_of(std::size_t parameter);
  bool is_committed() const;

  // compressor_checks.cpp
  void require_parameter(std::size_t parameter, const char* where) const;
  void require_fits(const at::Tensor& bucket, const std::vector<Slot>& slots) const;
  static void require_gradients(const at::Tensor& bucket);
  void require_takes_sparse() const;
  void require_within(const at::Tensor& bucket, const std::vector<Slot>& slots) const;
  void require_first_use(const std::vector<Slot>& slots) const;
  static void require_divisor(std::optional<double> divisor);

  // compressor_bucket.cpp
  std::unique_ptr<Job> job_of(at::Tensor bucket, std::vector<Slot> slots, std::optional<double> divisor) const;
  void count_bucket(const at::Tensor& bucket, const std::vector<Slot>& slots, Clock::time_point ready);
  AutoPlan::Turn choose_plan(Job& job);
  bool is_sent_encoded(const Job& job) const;
  void take_values(Job& job);
  void start(Job& job);
  static void finish_alone(Job& job);
  void keep_figures(const Job& job, const Outcome& outcome);
  void write_results(const Job& job);
  void keep_gradients(Job& job) const;
  bool has_encoded(const std::vector<Slot>& slots) const;
  bool fits_dtype(const Job& job) const;
  bool takes_as_it_is(const Job& job) const;
  bool is_cut(const Parameter& parameter) const;
  CommonTraits common_traits() const;
  at::Tensor result_of(const at::Tensor& bucket) const;

  // compressor_contributions.cpp
  std::vector<Contribution> contributions(const Job& job);
  Contribution contribution(std::size_t index, void* values, c10::Device device);
  std::uint64_t digest_of(const Job& job, const std::vector<Contribution>& tensors) const;
  void expect_any_plan(const std::vector<Slot>& slots);
  bool has_residuals_of_earlier_choice(std::size_t index);
  ParameterPlan::Codecs codecs_of(const Parameter& parameter) const;
  const LinearMap* map_of(const Parameter& parameter) const;
  static Matrix shape_of(const Parameter& parameter);
  Mapping mapping(std::size_t index);
  std::uint64_t step_of_training() const;

  // compressor_plan.cpp
  void use(const Plan& plan);
  Following following(const Plan& plan, std::size_t index);
  void require_fits_ranks(const Plan& plan) const;
  void forget_unused();
  void require_fits_hosts(const Plan& plan, const std::vector<std::string>& parameters) const;

  // compressor_momenta.cpp
  static void require_magnitudes(const Plan& plan, const char* where);
  static void require_fits_momenta(const Plan& plan, const char* where);
  void require_whole_gradients(const char* where) const;
  void require_whole_averages(const char* where) const;

  // compressor_state.cpp, compressor_stats.cpp
  void continue_from(const CompressorState& state);
  OwedByRange owed_from(std::size_t parameter, const Feedback::KeptByRole& kept, int rank, int world_size) const;
  void measure(Job& job);
  std::uint64_t ring_bytes(std::uint64_t payload_bytes) const;
  std::uint64_t wire_bytes(const Parameter& parameter) const;

  mutable std::mutex mutex_;
  std::unique_ptr<Wire> wire_, shards_, host_;  // shards_, host_: null where there are none
  Collective collective_;
  Verdict verdict_;
  SchedulePool schedules_;
  std::shared_ptr<const Plan> plan_;           // parameters point into it
  std::optional<AutoPlan> auto_;               // only where plan_ has choices and there are several ranks
  Clock::time_point first_ready_, last_done_;  // of the step's buckets
  std::vector<Parameter> parameters_;
  mutable std::optional<CommonTraits> common_;  // null until asked for, and once the step or a plan has changed
  StateStore state_;
  SentMomenta momenta_;
  bool residuals_are_of_momenta_ = false;
  bool was_loaded_ = false;  // since the last begin_step()
  float gradient_scale_ = 1.0F;
  float owed_share_ = 1.0F;
  Exchange next_exchange_ = Exchange::planned;                    // of gradients
  Exchange exchange_ = Exchange::planned;                         // of the current step
  bool measures_next_step_ = false, measures_this_step_ = false;  // for the next step, for this one
  std::uint64_t step_number_ = 0;                                 // saved and restored
  std::uint64_t mark_ = 0;                                        // of the current step
  std::uint64_t seed_, steps_per_exchange_;
  enum class Phase { none, under_way, ended } phase_ = Phase::none;
  std::uint64_t jobs_under_way_ = 0;  // begun in this step, and not finished
  ClipHistory clips_;
  std::uint64_t dense_bytes_ = 0, steps_here_ = 0;
  PackedFigures compared_;  // of parameters whose codecs need an estimate, over all steps
};

}  // namespace octavo
