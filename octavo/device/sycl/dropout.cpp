// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <torch/library.h>

#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/operators.h"

namespace octavo::sycl_device {

namespace {

/// By hand, since the CPU's draws from the CPU's default generator: output and the mask of what was kept.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const auto mask_like = input.options().dtype(at::kBool);
  if (!train.value_or(true) || input.numel() == 0) return {input.clone(), at::ones(input.sizes(), mask_like)};
  const double kept = 1 - p;
  const at::Tensor mask =
      at::empty(input.sizes(), mask_like).bernoulli_(kept, default_generator(input.device().index()));
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

}  // namespace

void register_dropout() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("native_dropout", native_dropout);
}

}  // namespace octavo::sycl_device
