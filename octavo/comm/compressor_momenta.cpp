// SPDX-License-Identifier: Apache-2.0
// Compressor: what is exchanged in the place of gradients: momenta, updates, nothing.
#include <ATen/ATen.h>

#include <utility>

#include "octavo/comm/compressor.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

/// Throws for a plan that votes, because momenta that are averaged need their magnitudes.
void Compressor::require_magnitudes(const Plan& plan, const char* where) {
  if (!plan.votes()) return;
  fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
       " keeps no magnitudes: momenta need one that does (sign+ef, int4+ef)");
}

/// Throws for a plan with a momentum of its own, because a momentum must be computed from gradients, not from another
/// momentum, and for `auto`, because what is sent of momenta says nothing of gradients.
void Compressor::require_fits_momenta(const Plan& plan, const char* where) {
  if (plan.general.choices) {
    fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
         " chooses among plans for gradients: momenta need a plan that stays the same (sign+ef, int4+ef)");
  }
  if (!plan.momentum()) return;
  fail(ErrorCode::invalid_argument, where, "the plan ", plan.text(),
       " has a momentum of its own: send momenta by one that has none (sign+ef, topk:0.01+ef)");
}

/// Throws unless each rank has whole gradients of its own, because what a rank makes of its gradients needs whole ones.
void Compressor::require_whole_gradients(const char* where) const {
  if (host_) {
    fail(ErrorCode::unsupported, where,
         "with ranks_per_host the means of hosts are sent, and nothing of a rank's own: leave ranks_per_host out");
  }
  require_whole_averages(where);
}

/// Throws where each rank gets a shard of the averages, because momenta and updates are of whole parameters.
void Compressor::require_whole_averages(const char* where) const {
  if (!scatters() && !shards_) return;
  fail(ErrorCode::unsupported, where,
       "each rank of fully_shard or ZeRO has only a shard of the averages: this is for DistributedDataParallel, and ",
       "other models take a plan for gradients, such as int4+ef");
}

void Compressor::set_exchange(Exchange exchange) {
  const std::lock_guard lock(mutex_);
  if (exchange != Exchange::planned) require_whole_gradients("comm.set_exchange");
  end_step_locked();
  next_exchange_ = exchange;
}

Exchange Compressor::exchange() const {
  const std::lock_guard lock(mutex_);
  return next_exchange_;
}

void Compressor::set_momentum(const std::map<std::string, SentMomenta::Momentum>& momenta, double beta) {
  const std::lock_guard lock(mutex_);
  if (!momenta.empty()) {
    require_whole_averages("comm.set_momentum");
    require_magnitudes(*plan_, "comm.set_momentum");
    require_fits_momenta(*plan_, "comm.set_momentum");
  }
  end_step_locked();
  momenta_.share(momenta, beta);
}

void Compressor::keep_own_momenta(const std::vector<std::string>& names, SentMomenta::OwnBetas betas) {
  const std::lock_guard lock(mutex_);
  if (!names.empty()) {
    require_whole_gradients("comm.keep_own_momenta");
    require_fits_momenta(*plan_, "comm.keep_own_momenta");
  }
  end_step_locked();
  momenta_.keep_own(names, betas);
}

void Compressor::keep_own_updates(const std::map<std::string, at::Tensor>& preconditioners, double beta) {
  const std::lock_guard lock(mutex_);
  if (!preconditioners.empty()) {
    require_whole_gradients("comm.keep_own_updates");
    require_fits_momenta(*plan_, "comm.keep_own_updates");
    require_magnitudes(*plan_, "comm.keep_own_updates");
  }
  end_step_locked();
  momenta_.keep_updates(preconditioners, beta);
}

void Compressor::set_step_sizes(const std::map<std::string, double>& step_sizes) {
  const std::lock_guard lock(mutex_);
  momenta_.set_step_sizes(step_sizes);
}

std::map<std::string, SentMomenta::OwnUpdate> Compressor::own_updates() {
  const std::lock_guard lock(mutex_);
  end_step_locked();
  return momenta_.own_updates();
}

SentMomenta::Sample Compressor::momentum_sample() const {
  const std::lock_guard lock(mutex_);
  return momenta_.sample();
}

bool Compressor::exchange_updates() {
  std::vector<Slot> slots;
  std::uint64_t count = 0;
  at::Tensor bucket;
  {
    const std::lock_guard lock(mutex_);
    end_step_locked();
    momenta_.clear_step_sizes();  // updates are averaged as they are
    for (const std::size_t index : momenta_.updated_parameters()) {
      slots.push_back({index, count});
      count += parameters_[index].info.count;
    }
    if (slots.empty()) return true;
    const at::Tensor& like = momenta_.preconditioner(slots.front().parameter);
    bucket = where_kernels_run(at::zeros({static_cast<std::int64_t>(count)}, like.options()));
    begin_step_of(Exchange::planned);
  }
  try {
    reduce(bucket, std::move(slots));
  } catch (...) {
    abandon_step();
    throw;
  }
  return end_step();
}

}  // namespace octavo
