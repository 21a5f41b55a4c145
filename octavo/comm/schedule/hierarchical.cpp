// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/hierarchical.h"

#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

Hierarchical::Hierarchical(Wire& host, Wire& between, PhaseSeconds& seconds, c10::Device device)
    : host_(host),
      seconds_(seconds),
      device_(device),
      sums_(host, seconds, device),
      between_(between, seconds, device),
      hosts_(between.world_size()),
      results_(host, device) {}

void Hierarchical::begin(Bucket bucket) {
  bucket_ = std::move(bucket);
  begun_ = 0;
  const auto phase = [&](Way way) { return packs(bucket_.tensors, way, hosts_) ? 2 : 1; };
  transfers_ = 2 + phase(Way::up) + phase(Way::down);
  const Codec& exact = exact_coding(bucket_.gradients.scalar_type());
  std::vector<Contribution> summed;
  gathered_.clear();
  for (const Contribution& tensor : bucket_.tensors) {
    gathered_.push_back({tensor.values, tensor.count, &exact, &exact});
    gathered_.back().dtype = tensor.dtype;
    summed.push_back(gathered_.back());
    summed.back().down = &block_coding(BlockCodec::fp32);  // the codec of the sums at their owner
    summed.back().owner_keeps_sum = true;
  }
  sums_.begin({{}, std::move(summed), static_cast<double>(host_.world_size()), bucket_.digest});
}

void Hierarchical::advance() {
  if (begun_ == 0) return exchange_between_hosts();
  if (begun_ == between_.transfers()) return gather_in_host();
  ++begun_;
  between_.advance();
}

void Hierarchical::exchange_between_hosts() {
  const std::vector<float> power = sums_.finish().power;
  std::vector<Contribution> owned;
  for (std::size_t t = 0; t < bucket_.tensors.size(); ++t) owned.push_back(own_range(bucket_.tensors[t], power[t]));
  between_.begin({{}, std::move(owned), bucket_.divisor / host_.world_size(), bucket_.digest});
  begun_ = 1;
}

/// Returns the contribution of this rank's range between hosts. The gradient's weight and the momentum are applied
/// here, because inside the host gradients were summed as they are. The parts of a host's ranks draw the same random
/// bits, each for its own elements.
Contribution Hierarchical::own_range(const Contribution& tensor, float power) const {
  const Range own = owned_range(tensor.count, host_.rank(), host_.world_size());
  Contribution part = tensor;
  part.values = tensor.at(own.first);
  part.count = own.count;
  if (part.momentum) part.momentum += own.first;
  if (part.preconditioner) part.preconditioner += own.first;
  part.power = power;
  return part;
}

void Hierarchical::gather_in_host() {
  const WaitAtEnd buffers_are_free(device_);
  outcome_ = between_.finish();
  Stopwatch watch;
  results_.begin(std::move(gathered_), bucket_.digest);
  watch.lap(seconds_.encode);
}

/// Every rank checks all results, so that all ranks agree on what is not finite.
Outcome Hierarchical::finish() {
  const WaitAtEnd buffers_are_free(device_);
  Stopwatch watch;
  results_.wait();
  watch.lap(seconds_.wait_down);
  std::uint32_t* const nonfinite = cleared_word(nonfinite_, device_);
  results_.decode_all(nonfinite);  // absent gradients have results, too: their momenta
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  bucket_ = {};  // its memory is the caller's
  outcome_.finite = *nonfinite == 0;
  return std::move(outcome_);
}

}  // namespace octavo
