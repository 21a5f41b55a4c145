// SPDX-License-Identifier: Apache-2.0
// An operator of a user's own: torch.ops.example.gated_add(x, y), on cpu, sycl and xpu.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <octavo/device.h>

extern const char* const gated_add_sycl;  // gated_add.sycl, put here by octavo.build

namespace {

at::Tensor gated_add(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.sizes() == y.sizes() && x.device() == y.device(),
                    "[example.gated_add] expected y like x, of shape ", x.sizes(), " on ", x.device(), ", got ",
                    y.sizes(), " on ", y.device());
  TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat,
                   "[example.gated_add] expected float32, got ", x.scalar_type(), " and ", y.scalar_type());
  const at::Tensor first = x.contiguous(), second = y.contiguous();
  at::Tensor out = at::empty_like(first);
  static octavo::SyclKernel kernel(gated_add_sycl, "gated_add");
  constexpr std::uint64_t kGroup = 256;
  const auto count = static_cast<std::uint64_t>(first.numel());
  kernel(x.device(), (count + kGroup - 1) / kGroup, kGroup, first.const_data_ptr<float>(),
         second.const_data_ptr<float>(), count, out.mutable_data_ptr<float>());
  return out;
}

TORCH_LIBRARY(example, m) { m.def("gated_add(Tensor x, Tensor y) -> Tensor"); }
TORCH_LIBRARY_IMPL(example, CompositeExplicitAutograd, m) { m.impl("gated_add", gated_add); }

}  // namespace
