// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/all_reduce_sum.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/schedule/sparse_sum.h"
#include "octavo/comm/schedule/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/finite.h"

namespace octavo {

void AllReduceSum::begin(Bucket bucket) {
  Stopwatch watch;
  bucket_ = std::move(bucket);
  transfers_.clear();
  at::Tensor& gradients = bucket_.gradients;
  powers_ = on_host_ = at::Tensor();
  if (!gradients.is_sparse()) powers_ = summands(gradient_powers(bucket_.tensors, device_, chunk_powers_));
  gradients.div_(bucket_.divisor);  // before the sum, as DDP does: the sum could overflow
  if (wire_.world_size() > 1) {
    on_host_ = gradients.cpu();  // waits for the stream
    if (gradients.is_sparse()) {
      watch.lap(seconds_.encode);
      on_host_ = sum_of_sparse(wire_, on_host_, bucket_.digest);
      watch.lap(seconds_.wait_up);
    } else {
      transfers_.push_back(wire_.start_all_reduce(powers_));
      transfers_.push_back(wire_.start_all_reduce(on_host_));
    }
  }
  watch.lap(seconds_.encode);
}

Outcome AllReduceSum::finish() {
  Stopwatch watch;
  for (Transfer& transfer : transfers_) transfer.wait();
  watch.lap(seconds_.wait_up);
  at::Tensor& gradients = bucket_.gradients;
  if (on_host_.defined() && !on_host_.is_same(gradients)) {
    // sparse tensors can be copied only within a device
    gradients.copy_(gradients.is_sparse() ? on_host_.to(gradients.device()) : on_host_);
  }
  wait_for_current_stream(device_);
  const Outcome result = outcome();
  bucket_ = {};  // its memory is the caller's
  on_host_ = at::Tensor();
  watch.lap(seconds_.decode);
  return result;
}

Outcome AllReduceSum::outcome() const {
  const at::Tensor& gradients = bucket_.gradients;
  const bool finite = all_finite(gradients);
  return {finite, powers_.defined() ? mean_powers(powers_, wire_.world_size()) : std::vector<float>()};
}

}  // namespace octavo
