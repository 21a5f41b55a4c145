// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/float_part.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace octavo {

namespace {

/// Copies without the checks of autograd, because there is one of these calls for every part.
void convert(const at::Tensor& from, at::Tensor to) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from, /*non_blocking=*/true);
}

}  // namespace

FloatPart::FloatPart(c10::Device device, const Contribution& tensor, std::uint64_t first, std::uint64_t count)
    : device_(device) {
  static thread_local at::Tensor kept_by_thread;
  if (tensor.dtype == at::kFloat) {
    data_ = static_cast<float*>(tensor.at(first));
    return;
  }
  elements_ = elements_at(tensor.at(first), tensor.dtype, count, device);
  data_ = copy_.emplace(device, count, kept_by_thread).data();
}

const float* FloatPart::load() const {
  if (is_copy()) convert(elements_, floats_at(data_, static_cast<std::uint64_t>(elements_.numel()), device_));
  return data_;
}

void FloatPart::store() const {
  if (is_copy()) convert(floats_at(data_, static_cast<std::uint64_t>(elements_.numel()), device_), elements_);
}

void load_rows(c10::Device device, const Contribution& tensor, std::uint64_t first, std::uint64_t rows,
               std::uint64_t count, std::uint64_t stride, float* to) {
  const std::int64_t sizes[] = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(count)};
  const std::int64_t strides[] = {static_cast<std::int64_t>(stride), 1};
  const std::uint64_t spanned = (rows - 1) * stride + count;
  const at::Tensor from = elements_at(tensor.at(first), tensor.dtype, spanned, device).as_strided(sizes, strides);
  convert(from, floats_at(to, rows * count, device).view(sizes));
}

}  // namespace octavo
