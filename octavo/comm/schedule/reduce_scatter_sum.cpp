// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/reduce_scatter_sum.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/schedule/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/finite.h"

namespace octavo {

void ReduceScatterSum::begin(Bucket bucket) {
  Stopwatch watch;
  bucket_ = std::move(bucket);
  transfers_.clear();
  powers_ = summands(gradient_powers(bucket_.tensors, device_, chunk_powers_));
  on_host_ = bucket_.gradients.cpu();  // waits for the stream
  sum_ = at::empty({on_host_.numel() / wire_.world_size()}, on_host_.options());
  transfers_.push_back(wire_.start_all_reduce(powers_));
  transfers_.push_back(wire_.start_reduce_scatter(sum_, on_host_));
  watch.lap(seconds_.encode);
}

Outcome ReduceScatterSum::finish() {
  Stopwatch watch;
  for (Transfer& transfer : transfers_) transfer.wait();
  watch.lap(seconds_.wait_up);
  sum_.div_(bucket_.divisor);  // after the sum, as process groups do for an average, so that the bits are the same
  bucket_.gradients.narrow(0, wire_.rank() * sum_.numel(), sum_.numel()).copy_(sum_);
  wait_for_current_stream(device_);
  const Outcome outcome{all_finite(sum_), mean_powers(powers_, wire_.world_size())};
  bucket_ = {};  // its memory is the caller's
  on_host_ = at::Tensor();
  watch.lap(seconds_.decode);
  return outcome;
}

}  // namespace octavo
