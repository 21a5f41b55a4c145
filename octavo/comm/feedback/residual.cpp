// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/residual.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "octavo/device/huge_pages.h"

namespace octavo {

static_assert(sizeof(rules::Residual) == sizeof(at::BFloat16));

const rules::Residual* Residual::now(c10::Device device) {
  if (now_.defined() && now_.device() != device) now_ = now_.to(device);  // restored from a file
  return now_.defined() ? reinterpret_cast<const rules::Residual*>(now_.const_data_ptr<at::BFloat16>()) : nullptr;
}

rules::Residual* Residual::next(std::uint64_t count, c10::Device device) {
  const auto size = static_cast<std::int64_t>(count);
  if (!next_.defined() || next_.numel() != size || next_.device() != device) {
    next_ = device.is_cpu() ? empty_on_huge_pages(count, at::kBFloat16)
                            : at::empty({size}, at::TensorOptions(at::kBFloat16).device(device));
  }
  written_ = true;
  return reinterpret_cast<rules::Residual*>(next_.mutable_data_ptr<at::BFloat16>());
}

void Residual::commit() {
  if (written_) std::swap(now_, next_);
  written_ = false;
}

void Residual::roll_back() { written_ = false; }

void Residual::clear() { *this = Residual(); }

void Residual::restore(at::Tensor values) {
  now_ = std::move(values);
  written_ = false;
}

}  // namespace octavo
