// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/all_reduce_sum.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/device/dispatch.h"
#include "octavo/rules/gradient_power.h"

namespace octavo {

namespace {

/// By the least and the greatest, which are NaN where any value is: a pass at the speed of memory, which torch's norms
/// of order infinity and its isfinite are not.
bool all_finite(const at::Tensor& values) {
  if (values.numel() == 0) return true;
  const auto [least, greatest] = at::aminmax(values);
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

}  // namespace

void AllReduceSum::begin(Bucket bucket) {
  bucket_ = std::move(bucket);
  transfers_.clear();
  at::Tensor& gradients = bucket_.gradients;
  powers_ = on_host_ = at::Tensor();
  if (!gradients.is_sparse()) measure();
  gradients.div_(bucket_.divisor);  // before the sum, as DDP does: the sum could overflow
  if (wire_.world_size() == 1) return;
  on_host_ = gradients.cpu();  // waits for the stream
  for (at::Tensor* tensor : {&powers_, &on_host_}) {
    if (tensor->defined()) transfers_.push_back(wire_.start_all_reduce(*tensor));
  }
}

void AllReduceSum::measure() {
  const std::vector<float> own = gradient_powers(bucket_.tensors, device_, chunk_powers_);
  powers_ = at::empty({static_cast<std::int64_t>(own.size())}, at::kDouble);
  std::copy(own.begin(), own.end(), powers_.mutable_data_ptr<double>());
}

Outcome AllReduceSum::finish() {
  for (Transfer& transfer : transfers_) transfer.wait();
  at::Tensor& gradients = bucket_.gradients;
  if (on_host_.defined() && !on_host_.is_same(gradients)) {
    // sparse: copied only within a device
    gradients.copy_(gradients.is_sparse() ? on_host_.to(gradients.device()) : on_host_);
  }
  wait_for_current_stream(device_);
  const Outcome result = outcome();
  bucket_ = {};  // its memory is the caller's
  on_host_ = at::Tensor();
  return result;
}

Outcome AllReduceSum::outcome() const {
  const at::Tensor& gradients = bucket_.gradients;
  Outcome result{all_finite(gradients.is_sparse() ? gradients._values() : gradients), {}};
  for (std::int64_t i = 0; powers_.defined() && i < powers_.numel(); ++i) {
    const double power = powers_.const_data_ptr<double>()[i];
    const auto mean = static_cast<float>(power / wire_.world_size());
    result.power.push_back(power == 0 ? 0.0F : std::max(mean, rules::kLeastPower));
  }
  return result;
}

}  // namespace octavo
