// SPDX-License-Identifier: Apache-2.0
// Compressor: its statistics.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "octavo/comm/compressor.h"
#include "octavo/comm/state/packed.h"

namespace octavo {

namespace {

std::optional<double> reused_share(const PackedFigures& sent) {
  if (sent.values == 0) return std::nullopt;
  return static_cast<double>(sent.reused) / static_cast<double>(sent.values);
}

}  // namespace

CompressorStats Compressor::stats() {
  const std::lock_guard lock(mutex_);
  verdict_.collect();
  return {wire_->sent_bytes() + (shards_ ? shards_->sent_bytes() : 0),
          host_ ? host_->sent_bytes() : 0,
          dense_bytes_,
          steps_here_,
          verdict_.nonfinite_steps(),
          schedules_.seconds(),
          reused_share(compared_)};
}

/// Returns how many bytes a ring sends for the same result, for a payload of `payload_bytes` bytes.
std::uint64_t Compressor::ring_bytes(std::uint64_t payload_bytes) const {
  return octavo::ring_bytes(payload_bytes, rank_count()) / (scatters() ? 2 : 1);
}

std::optional<AutoStats> Compressor::auto_stats() const {
  const std::lock_guard lock(mutex_);
  if (!auto_) return std::nullopt;
  AutoStats stats{auto_->report(), {}, {}};
  for (const ParameterPlan& plan : *plan_->general.choices) stats.plans.push_back(plan.text());
  for (const Parameter& parameter : parameters_) stats.parameters.push_back(parameter.info.name);
  return stats;
}

std::vector<float> Compressor::gradient_powers() const {
  const std::lock_guard lock(mutex_);
  std::vector<float> powers;
  for (const Parameter& parameter : parameters_) powers.push_back(parameter.power);
  return powers;
}

/// Measures the loss of a bucket. It is called before results are scaled as the gradients are.
void Compressor::measure(Job& job) {
  std::vector<MeasuredLoss> losses(job.slots.size(), {0.0F, 1.0F});  // for what is sent as it is
  // Without other ranks, contributions() has divided the weights by divisor / rank_count() already.
  const double divisor = wire_->world_size() == 1 ? rank_count() : job.divisor;
  if (job.contributed) losses = job.contributed->compare(*wire_, divisor, job.values);
  for (std::size_t i = 0; i < job.slots.size(); ++i) {
    Parameter& parameter = parameters_[job.slots[i].parameter];
    if (parameter.plan->momentum() || parameter.power == 0) continue;
    parameter.loss = losses[i];
    const bool is_mean = codecs_of(parameter).up->traits().keeps_magnitude && !parameter.over_hits();
    if (!is_mean) parameter.loss.relative_error.reset();
  }
}

std::uint64_t Compressor::wire_bytes(const Parameter& parameter) const {
  const std::uint64_t count = parameter.remembered_count;
  if (parameter.plan->dense() && !momenta_.any() && !host_) return ring_bytes(count * sizeof(float));
  const auto [up, down] = codecs_of(parameter);
  const int world = wire_->world_size();
  const LinearMap* const map = map_of(parameter);
  const auto size_of = [](const Codec& codec, std::uint64_t owned) {
    return codec.traits().packs ? 0 : codec.payload_bytes(owned);
  };
  std::uint64_t bytes = parameter.packed.bytes;
  const auto receivers = static_cast<std::uint64_t>(scatters() ? 0 : world - 1);  // of an owner's sum
  for (const std::uint64_t sent : map ? map->image_sizes(shape_of(parameter), step_number_) : std::vector{count}) {
    for (int owner = 0; owner < world; ++owner) {
      const std::uint64_t owned = owned_range(sent, owner, world, parameter.info.ownership).count;
      bytes += owner == wire_->rank() ? size_of(*down, owned) * receivers : size_of(*up, owned);
    }
  }
  return bytes;
}

std::vector<ParameterStats> Compressor::parameter_stats() {
  const std::lock_guard lock(mutex_);
  verdict_.collect();
  const bool commits = verdict_.is_finite();
  std::vector<ParameterStats> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const ParameterInfo& info = parameter.info;
    const bool repays = commits && parameter.repays();
    double owed = 0;
    for (const Role& role : state_.roles()) {
      const at::Tensor& kept = commits ? state_.pending(i, role) : state_.at(i, role).tensor();
      if (repays || !role.is_owed || !kept.defined()) continue;
      const at::Tensor residual = role.dtype != at::kByte ? kept.to(at::kFloat)
                                                          : unpack(kept, role.extent, parameter.remembered_count,
                                                                   wire_->rank(), wire_->world_size(), info.ownership);
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

}  // namespace octavo
