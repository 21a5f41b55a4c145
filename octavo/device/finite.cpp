// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/finite.h"

#include <ATen/ATen.h>

#include <vector>

namespace octavo {

bool all_finite(const at::Tensor& tensor) {
  return all_finite(at::TensorList(tensor.is_sparse() ? tensor._values() : tensor));
}

/// The least and the greatest value are NaN where any value is. They are found in one pass at the speed of memory,
/// which torch's norms of order infinity and its isfinite are not.
bool all_finite(at::TensorList tensors) {
  std::vector<at::Tensor> extremes;
  for (const at::Tensor& values : tensors) {
    if (values.numel() == 0) continue;
    const auto [least, greatest] = at::aminmax(values);
    extremes.insert(extremes.end(), {least, greatest});
  }
  return extremes.empty() || at::stack(extremes).isfinite().all().item<bool>();
}

}  // namespace octavo
