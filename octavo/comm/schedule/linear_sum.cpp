// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/linear_sum.h"

#include <algorithm>
#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

void LinearSum::begin(Bucket bucket) {
  const WaitAtEnd buffers_are_free(device_);
  bucket_ = std::move(bucket);
  find_mapped();
  place_images();
  give_memory();
  round_ = 0;
  outcome_ = {true, std::vector<float>(bucket_.tensors.size())};
  begin_round();
  constexpr int kImageTransfers = 2;  // images are in float32, and all ranks know their sizes
  transfers_ = exchange_.transfers() + kImageTransfers * (static_cast<int>(rounds_) - 1);
}

void LinearSum::find_mapped() {
  mapped_.clear();
  plain_.clear();
  rounds_ = 1;
  std::vector<Contribution> measured;
  for (std::size_t t = 0; t < bucket_.tensors.size(); ++t) {
    const Contribution& tensor = bucket_.tensors[t];
    if (!tensor.mapping.map || wire_.world_size() == 1) {
      plain_.push_back(t);
      continue;
    }
    const Mapping& mapping = tensor.mapping;
    MapInput input{mapping.shape,          tensor.input(0, static_cast<const float*>(tensor.values)),
                   mapping.error_feedback, mapping.momentum,
                   mapping.step,           tensor.shared_key};
    input.seed = mapping.seed;
    // Unless they are derived, keys of neighbouring ranks and parameters draw the same bits for other elements.
    input.values.rounding_key = rules::derive_key(tensor.rounding_key, kMapResidualPurpose);
    if (mapping.residual) input.values.residual = mapping.residual->now<rules::Residual>(device_);
    mapped_.push_back({t, input, {}, mapping.map->image_sizes(mapping.shape, mapping.step)});
    rounds_ = std::max(rounds_, mapped_.back().sizes.size());
    measured.push_back(tensor);
  }
  const std::vector<float> powers = gradient_powers(measured, device_, chunk_powers_);
  for (std::size_t i = 0; i < mapped_.size(); ++i) mapped_[i].power = powers[i];
}

void LinearSum::place_images() {
  std::uint64_t floats = 0;
  for (const Mapped& mapped : mapped_) {
    for (const std::uint64_t size : mapped.sizes) floats += size;
  }
  auto* next = reserve_on_device<float>(images_, floats, device_);
  for (Mapped& mapped : mapped_) {
    for (const std::uint64_t size : mapped.sizes) {
      mapped.images.push_back(next);
      next += size;
    }
  }
}

/// Gives each map its memory. Where there is nowhere to keep a memory, it lasts as long as the bucket.
void LinearSum::give_memory() {
  const auto size_of = [&](const Mapped& mapped) {
    return bucket_.tensors[mapped.tensor].mapping.map->memory_size(mapped.input);
  };
  std::uint64_t floats = 0;
  for (const Mapped& mapped : mapped_) floats += size_of(mapped);
  auto* spare = reserve_on_device<float>(spare_memory_, floats, device_);
  for (Mapped& mapped : mapped_) {
    const std::uint64_t size = size_of(mapped);
    Versioned* const memory = bucket_.tensors[mapped.tensor].mapping.memory;
    mapped.input.next_memory = memory ? memory->next<float>(size, device_) : spare;
    if (!memory) spare += size;
    const bool fits = memory && memory->tensor().defined() &&
                      static_cast<std::uint64_t>(memory->tensor().numel()) == size;  // otherwise it is of another plan
    if (fits) mapped.input.memory = memory->now<float>(device_);
  }
}

void LinearSum::begin_round() {
  Stopwatch watch;
  Bucket images{{}, {}, bucket_.divisor, rules::derive_key(bucket_.digest, round_)};
  if (round_ == 0) {
    for (const std::size_t t : plain_) images.tensors.push_back(bucket_.tensors[t]);
  }
  for (const Mapped& mapped : mapped_) {
    if (mapped.sizes.size() <= round_) continue;
    bucket_.tensors[mapped.tensor].mapping.map->project(device_, mapped.input, round_, mapped.images);
    images.tensors.push_back(image(mapped));
  }
  watch.lap(seconds_.encode);
  exchange_.begin(std::move(images));
  begun_ = 1;
}

Contribution LinearSum::image(const Mapped& mapped) const {
  const Contribution& tensor = bucket_.tensors[mapped.tensor];
  Contribution image{mapped.images[round_], mapped.sizes[round_], tensor.up, tensor.down};
  image.rounding_key = rules::derive_key(tensor.rounding_key, round_);
  image.shared_key = rules::derive_key(tensor.shared_key, round_);
  image.power = mapped.power;
  return image;
}

void LinearSum::advance() {
  const WaitAtEnd buffers_are_free(device_);
  if (begun_ < exchange_.transfers()) {
    ++begun_;
    return exchange_.advance();
  }
  end_round();
  ++round_;
  begin_round();
}

void LinearSum::end_round() {
  const Outcome outcome = exchange_.finish();
  outcome_.finite &= outcome.finite;
  auto power = outcome.power.begin();
  if (round_ == 0) {
    for (const std::size_t t : plain_) outcome_.power[t] = *power++;
    if (!outcome.packed.empty()) outcome_.packed.resize(bucket_.tensors.size());
    for (std::size_t i = 0; i < plain_.size() && !outcome.packed.empty(); ++i) {
      outcome_.packed[plain_[i]] = outcome.packed[i];
    }
  }
  for (const Mapped& mapped : mapped_) {
    if (mapped.sizes.size() > round_) outcome_.power[mapped.tensor] = *power++;
  }
}

Outcome LinearSum::finish() {
  const WaitAtEnd buffers_are_free(device_);
  end_round();
  Stopwatch watch;
  std::uint32_t* const nonfinite = cleared_word(nonfinite_, device_);
  for (const Mapped& mapped : mapped_) reconstruct(mapped, nonfinite);
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  bucket_ = {};  // its memory is the caller's
  outcome_.finite &= *nonfinite == 0;
  return std::move(outcome_);
}

void LinearSum::reconstruct(const Mapped& mapped, std::uint32_t* nonfinite) {
  const Contribution& tensor = bucket_.tensors[mapped.tensor];
  if (outcome_.power[mapped.tensor] == 0) return exchange_.keep_here(tensor, bucket_.divisor, nonfinite);
  const Mapping& mapping = tensor.mapping;
  rules::Residual* const next =
      mapping.residual ? mapping.residual->next<rules::Residual>(tensor.count, device_) : nullptr;
  mapping.map->reconstruct(device_, mapped.input, mapped.images, static_cast<float*>(tensor.values), next, nonfinite);
}

}  // namespace octavo
