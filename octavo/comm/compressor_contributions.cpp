// SPDX-License-Identifier: Apache-2.0
// Compressor: how the parameters of a bucket are sent.
#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/feedback/dgc.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/schedule/messages.h"

namespace octavo {

namespace {

/// Returns the codec by which a contribution goes up: bfloat16 gradients that would be sent in float32 are sent exactly
/// in half of its bytes.
const Codec* without_loss(const Contribution& tensor) {
  const bool is_bfloat16 = tensor.dtype == at::kBFloat16 && tensor.memory == FeedbackMemory::none();
  return is_bfloat16 && tensor.up == &block_coding(BlockCodec::fp32) ? &exact_coding(tensor.dtype) : tensor.up;
}

/// Returns a key that is distinct for every step, parameter and rank of a run; with ranks_per_host, for every host,
/// whose ranks use it for different elements. The random bits that rounding adds must not repeat. Numbers that do not
/// fit into the fields of a key are hashed to one.
std::uint64_t rounding_key_of_parameter(std::uint64_t step, std::uint64_t parameter, std::uint64_t rank) {
  constexpr unsigned kStepShift = 32, kParameterShift = 12;
  const bool fit = parameter >> (kStepShift - kParameterShift) == 0 && rank >> kParameterShift == 0;
  if (!fit) return rules::derive_key(rules::derive_key(step, parameter), rank);
  return step << kStepShift | parameter << kParameterShift | rank;
}

/// Returns a digest of a mapping. Of what the map remembers it says only whether there is any, because the memory is
/// the same on all ranks, and large.
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

/// Makes room for what another rank may send of a bucket under whatever plan (longest_message).
void Compressor::expect_any_plan(const std::vector<Slot>& slots) {
  std::vector<const Parameter*> sent;
  for (const Slot& slot : slots) sent.push_back(&parameters_[slot.parameter]);
  if (slots.empty()) {  // a sparse gradient, which may be dense on other ranks
    for (const Parameter& parameter : parameters_) sent.push_back(&parameter);
  }
  const auto expect = [&](Wire& wire, const auto& count_of) {
    std::uint64_t values = 0;
    for (const Parameter* one : sent) values += one->info.ownership.range_size(count_of(*one), wire.world_size());
    wire.expect_messages_of(longest_message(values, sent.size()));
  };
  expect(*wire_, [](const Parameter& parameter) { return parameter.remembered_count; });
  if (host_) expect(*host_, [](const Parameter& parameter) { return parameter.info.count; });
}

std::vector<Contribution> Compressor::contributions(const Job& job) {
  // A rank without peers forms no sum that would be divided.
  const float undivided = wire_->world_size() == 1 ? static_cast<float>(job.divisor / rank_count()) : 1.0F;
  std::vector<Contribution> tensors;
  for (const Slot& slot : job.slots) {
    std::byte* const in_bucket =
        static_cast<std::byte*>(job.values.mutable_data_ptr()) + slot.offset * job.values.itemsize();
    tensors.push_back(contribution(slot.parameter, slot.apart ? slot.apart : in_bucket, job.values.device()));
    tensors.back().dtype = job.values.scalar_type();
    tensors.back().gradient_weight /= undivided;
    tensors.back().momentum_weight /= undivided;
    if (collective_ == Collective::reduce_to_owners) tensors.back().up = without_loss(tensors.back());
    if (collective_ != Collective::reduce_scatter) continue;
    const std::uint64_t size = tensors.back().ownership.range_size(tensors.back().count, wire_->world_size());
    tensors.back().run = std::max<std::uint64_t>(1, size);
    tensors.back().stride = static_cast<std::uint64_t>(job.values.numel()) / static_cast<unsigned>(wire_->world_size());
  }
  return tensors;
}

std::uint64_t Compressor::digest_of(const Job& job, const std::vector<Contribution>& tensors) const {
  std::uint64_t digest = rules::seeded_key(rules::derive_key(step_number_, momenta_.any() ? 1 : 0), seed_);
  digest = rules::derive_key(digest, mark_);
  if (measures_this_step_) digest = rules::derive_key(digest, 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (momenta_.sends_own(job.slots[i].parameter)) {
      digest = rules::derive_key(digest, momenta_.kind() == SentMomenta::Kind::own ? 1 : 2);
    }
    for (const Codec* codec : {tensors[i].up, tensors[i].down}) {
      digest = rules::derive_key(digest, codec->fingerprint());
    }
    if (tensors[i].over_hits) digest = rules::derive_key(digest, 1);
    digest = rules::derive_key(digest, mapping_digest(tensors[i].mapping));
    digest = rules::derive_key(digest, job.slots[i].parameter);
    digest = rules::derive_key(digest, tensors[i].count);
    digest = rules::derive_key(digest, tensors[i].memory->digest());
  }
  return digest;
}

/// Whether `auto` has gone from a plan with feedback to one without: the next step then sends the residuals in float32.
bool Compressor::has_residuals_of_earlier_choice(std::size_t index) {
  const Parameter& parameter = parameters_[index];
  if (!auto_ || parameter.plan->feedback || !plan_->of(parameter.info.name).choices) return false;
  return state_.at(index, kWorkerResidual).tensor().defined() || state_.at(index, kOwnerResidual).tensor().defined();
}

ParameterPlan::Codecs Compressor::codecs_of(const Parameter& parameter) const {
  if (parameter.info.exempt) return {&block_coding(BlockCodec::fp32), &block_coding(BlockCodec::fp32)};
  return scatters() ? parameter.plan->kept_at(step_of_training()) : parameter.plan->at(step_of_training());
}

/// Returns the step with which the exchange under way begins, counted from 1.
std::uint64_t Compressor::step_of_training() const {
  return step_number_ == 0 ? 0 : (step_number_ - 1) * steps_per_exchange_ + 1;
}

/// Returns null for a parameter that is sent as it is.
const LinearMap* Compressor::map_of(const Parameter& parameter) const {
  const LinearMap* const map = parameter.info.exempt ? nullptr : parameter.plan->map_at(step_of_training());
  return map && !map->image_sizes(shape_of(parameter), step_number_).empty() ? map : nullptr;
}

Mapping Compressor::mapping(std::size_t index) {
  const Parameter& parameter = parameters_[index];
  const LinearMap* const map = map_of(parameter);
  if (!map) return {};
  Versioned& warm_up_velocity = state_.at(index, kVelocity);
  // A world of one rank makes no maps, and goes on with it.
  if (wire_->world_size() > 1 && warm_up_velocity.tensor().defined()) warm_up_velocity.clear();
  const bool error_feedback = parameter.plan->feedback != nullptr;
  Versioned* const residual = error_feedback && map->needs_residual() ? &state_.at(index, kResidual) : nullptr;
  const auto momentum = static_cast<float>(parameter.plan->momentum().value_or(0));
  return {map,      shape_of(parameter),           step_number_, error_feedback,
          residual, &state_.at(index, kMapMemory), seed_,        momentum};
}

Contribution Compressor::contribution(std::size_t index, void* values, c10::Device device) {
  Parameter& parameter = parameters_[index];
  parameter.sends_residuals = exchange_ == Exchange::planned && has_residuals_of_earlier_choice(index);
  auto [up, down] = codecs_of(parameter);
  if (parameter.sends_residuals) up = down = &block_coding(BlockCodec::fp32);
  Contribution tensor{values, parameter.info.count, up, down};
  tensor.owner_keeps_sum = scatters();
  tensor.ownership = parameter.info.ownership;
  momenta_.describe(index, device, gradient_scale_, tensor);
  tensor.mapping = mapping(index);
  tensor.memory = parameter.plan->feedback || parameter.sends_residuals ? parameter.memory : FeedbackMemory::none();
  tensor.over_hits = parameter.over_hits();
  tensor.codes_own = parameter.codes_own();
  tensor.owed_share = owed_share_;
  tensor.step = step_number_;
  tensor.rounding_key = rules::seeded_key(
      rounding_key_of_parameter(step_number_, index, static_cast<std::uint64_t>(wire_->rank())), seed_);
  tensor.shared_key = rules::seeded_key(rules::derive_key(step_number_, index), seed_);
  return tensor;
}

}  // namespace octavo
