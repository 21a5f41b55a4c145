// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/bind.h"

namespace octavo {

namespace {

/// Whether something takes a parameter's gradient after it was accumulated, as DistributedDataParallel's reducer does.
/// The reducer adds a hook behind the node that accumulates, and keeps the node alive. Hooks of the parameter itself,
/// such as those that `register_post_accumulate_grad_hook` adds, are not hooks of the node.
bool is_gradient_awaited(const at::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return node && !node->post_hooks().empty();
}

}  // namespace

void bind_autograd(pybind11::module_& m) { m.def("is_gradient_awaited", &is_gradient_awaited); }

}  // namespace octavo
