// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include "octavo/device/sycl/call.h"
#include "octavo/device/sycl/operators.h"

namespace octavo::sycl_device {

namespace {

using torch::jit::Stack;

// torch asks a device that it does not know for `convolution_overrideable`; the CPU's own operator has another name.

void convolution(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  call_on_cpu(op, OperatorTraits(op), stack);
}

void convolution_backward(const c10::OperatorHandle& overrideable, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const std::size_t first = stack->size() - overrideable.schema().arguments().size();
  const bool wants_bias = stack->back().toBoolList().get(2);  // of output_mask
  const auto channels = (*stack)[first].toTensor().size(1);   // of grad_output
  constexpr std::ptrdiff_t kBiasSizes = 3;                    // after grad_output, input and weight
  const c10::IValue bias_sizes = wants_bias ? c10::IValue(std::vector<std::int64_t>{channels}) : c10::IValue();
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + kBiasSizes, bias_sizes);
  call_on_cpu(op, OperatorTraits(op), stack);
}

}  // namespace

void register_convolution() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library->impl("convolution_backward_overrideable",
                torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace octavo::sycl_device
