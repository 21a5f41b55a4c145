// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/verdict.h"

#include <ATen/ATen.h>

namespace octavo {

void Verdict::tell(bool finite) {
  at::Tensor others = at::full({1}, finite ? 0 : 1, at::kInt);
  Transfer transfer = wire_.start_all_reduce(others);
  told_.emplace_back(std::move(others), std::move(transfer));
}

bool Verdict::hear() {
  auto told = std::exchange(told_, {});
  bool finite = true;
  for (auto& [nonfinite, transfer] : told) {
    transfer.wait();
    finite &= nonfinite.item<std::int32_t>() == 0;
  }
  return finite;
}

}  // namespace octavo
