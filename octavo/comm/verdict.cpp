// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/verdict.h"

#include <ATen/ATen.h>

namespace octavo {

void Verdict::report(bool finite) {
  is_finite_ &= finite;
  if (!others_) return;
  at::Tensor nonfinite = at::full({1}, finite ? 0 : 1, at::kInt);
  Transfer transfer = others_->start_all_reduce(nonfinite);
  reported_.emplace_back(std::move(nonfinite), std::move(transfer));
}

void Verdict::collect() {
  auto reported = std::exchange(reported_, {});
  bool finite = std::exchange(is_finite_, false);  // stays false if a wait throws
  for (auto& [nonfinite, transfer] : reported) {
    transfer.wait();
    finite &= nonfinite.item<std::int32_t>() == 0;
  }
  is_finite_ = finite;
}

bool Verdict::end_step() {
  collect();
  const bool finite = std::exchange(is_finite_, true);
  if (std::exchange(is_under_way_, false)) last_was_finite_ = finite;
  nonfinite_steps_ += finite ? 0 : 1;
  return finite;
}

void Verdict::abandon_step() {
  reported_.clear();
  end_step();
  last_was_finite_ = false;
}

}  // namespace octavo
