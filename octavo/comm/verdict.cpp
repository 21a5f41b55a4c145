// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/verdict.h"

#include <ATen/ATen.h>

namespace octavo {

void Verdict::tell(bool finite) {
  is_finite_ &= finite;
  if (!others_) return;
  at::Tensor nonfinite = at::full({1}, finite ? 0 : 1, at::kInt);
  Transfer transfer = others_->start_all_reduce(nonfinite);
  told_.emplace_back(std::move(nonfinite), std::move(transfer));
}

void Verdict::hear() {
  auto told = std::exchange(told_, {});
  bool finite = std::exchange(is_finite_, false);  // stays false if a wait throws
  for (auto& [nonfinite, transfer] : told) {
    transfer.wait();
    finite &= nonfinite.item<std::int32_t>() == 0;
  }
  is_finite_ = finite;
}

bool Verdict::end_step() {
  hear();
  const bool finite = std::exchange(is_finite_, true);
  if (std::exchange(is_under_way_, false)) last_was_finite_ = finite;
  nonfinite_steps_ += finite ? 0 : 1;
  return finite;
}

void Verdict::abandon_step() {
  told_.clear();
  end_step();
  last_was_finite_ = false;
}

}  // namespace octavo
