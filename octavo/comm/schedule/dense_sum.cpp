// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/dense_sum.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/schedule/sparse_sum.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/finite.h"

namespace octavo {

void DenseSum::begin(Bucket bucket) {
  Stopwatch watch;
  bucket_ = std::move(bucket);
  transfers_.clear();
  whole_ = sum_ = at::Tensor();
  powers_ = summands(gradient_powers(bucket_.tensors, device_, chunk_powers_));
  if (owners_keep_sums_) {
    start_reduce_scatter();
  } else {
    bucket_.gradients.div_(bucket_.divisor);  // before the sum, as DDP does: the sum could overflow
    if (wire_.world_size() > 1) start_all_reduce(watch);
  }
  watch.lap(seconds_.encode);
}

void DenseSum::start_all_reduce(Stopwatch& watch) {
  sum_ = bucket_.gradients.cpu();  // waits for the stream
  if (sum_.is_sparse()) {
    watch.lap(seconds_.encode);
    sum_ = sum_of_sparse(wire_, sum_, bucket_.digest);
    watch.lap(seconds_.wait_up);
  } else {
    transfers_.push_back(wire_.start_all_reduce(powers_));
    transfers_.push_back(wire_.start_all_reduce(sum_));
  }
}

void DenseSum::start_reduce_scatter() {
  whole_ = bucket_.gradients.cpu();  // waits for the stream
  sum_ = at::empty({whole_.numel() / wire_.world_size()}, whole_.options());
  transfers_.push_back(wire_.start_all_reduce(powers_));
  transfers_.push_back(wire_.start_reduce_scatter(sum_, whole_));
}

Outcome DenseSum::finish() {
  Stopwatch watch;
  for (Transfer& transfer : transfers_) transfer.wait();
  watch.lap(seconds_.wait_up);
  // after the sum, as process groups do for an average, so that the bits are the same
  if (owners_keep_sums_) sum_.div_(bucket_.divisor);
  deliver();
  wait_for_current_stream(device_);
  const Outcome outcome{all_finite(owners_keep_sums_ ? sum_ : bucket_.gradients),
                        mean_powers(powers_, wire_.world_size())};
  bucket_ = {};  // its memory is the caller's
  whole_ = sum_ = at::Tensor();
  watch.lap(seconds_.decode);
  return outcome;
}

/// Copies the sum to its place among the gradients, if it is not there.
void DenseSum::deliver() const {
  at::Tensor place = bucket_.gradients;
  if (owners_keep_sums_) place = place.narrow(0, wire_.rank() * sum_.numel(), sum_.numel());
  if (!sum_.defined() || sum_.is_same(place)) return;
  // sparse tensors can be copied only within a device
  place.copy_(place.is_sparse() ? sum_.to(place.device()) : sum_);
}

}  // namespace octavo
