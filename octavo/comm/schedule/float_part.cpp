// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/float_part.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

namespace octavo {

namespace {

at::Tensor elements_of(c10::Device device, const Contribution& tensor, std::uint64_t first, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  return at::for_blob(tensor.at(first), sizes)
      .strides(strides)
      .options(at::TensorOptions(tensor.dtype).device(device))
      .target_device(device)
      .make_tensor();
}

/// Without what autograd would look at: there is one of these calls for every part.
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
  elements_ = elements_of(device, tensor, first, {static_cast<std::int64_t>(count)}, {1});
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
  const at::Tensor from = elements_of(device, tensor, first, sizes, {static_cast<std::int64_t>(stride), 1});
  convert(from, floats_at(to, rows * count, device).view(sizes));
}

}  // namespace octavo
