// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <memory>
#include <utility>
#include <vector>

#include "octavo/device/sycl/call.h"
#include "octavo/device/sycl/operators.h"

namespace octavo::sycl_device {

namespace {

using torch::jit::Stack;

constexpr const char* kWhat = "octavo: the CPU's kernel on memory of sycl";

void keep(c10::RegistrationHandleRAII registration) {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  all->push_back(std::move(registration));
}

// ---- all operators of the CPU

/// The kernel of one operator.
class Fallback final : public c10::OperatorKernel {
 public:
  Fallback(const c10::OperatorHandle& op, bool is_sparse) : traits_(op, is_sparse) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { call_on_cpu(op, traits_, stack); }

 private:
  OperatorTraits traits_;
};

void fall_back(const c10::OperatorHandle& op, Stack* stack) { call_on_cpu(op, OperatorTraits(op), stack); }

void fall_back_sparse(const c10::OperatorHandle& op, Stack* stack) {
  call_on_cpu(op, OperatorTraits(op, /*is_sparse=*/true), stack);
}

/// Gives `key` every operator that `cpu_key` has and `key` lacks.
void mirror(c10::DispatchKey cpu_key, c10::DispatchKey key, bool is_sparse) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(cpu_key)) {
    const auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(key)) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Fallback>(*op, is_sparse));
    keep(dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, kWhat));
  }
}

// ---- convolution

// torch asks a device that it does not know for `convolution_overrideable`; the CPU's own operator has another name.

void convolution(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  call_on_cpu(op, OperatorTraits(op), stack);
}

void convolution_backward(const c10::OperatorHandle& overrideable, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const std::size_t first = stack->size() - overrideable.schema().arguments().size();
  const bool wants_bias = stack->back().toBoolList().get(2);  // from output_mask
  const auto channels = (*stack)[first].toTensor().size(1);   // from grad_output
  constexpr std::ptrdiff_t kBiasSizes = 3;                    // after grad_output, input and weight
  const c10::IValue bias_sizes = wants_bias ? c10::IValue(std::vector<std::int64_t>{channels}) : c10::IValue();
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + kBiasSizes, bias_sizes);
  call_on_cpu(op, OperatorTraits(op), stack);
}

}  // namespace

void register_cpu_operators() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library->impl("convolution_backward_overrideable",
                torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // Each operator that the CPU has is registered by itself. Otherwise one with a functional and an out= form would go
  // through both.
  mirror(c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1, /*is_sparse=*/false);
  mirror(c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1, /*is_sparse=*/true);
  auto& dispatcher = c10::Dispatcher::singleton();
  keep(dispatcher.registerFallback(c10::DispatchKey::PrivateUse1,
                                   c10::KernelFunction::makeFromBoxedFunction<&fall_back>(), kWhat));
  keep(dispatcher.registerFallback(c10::DispatchKey::SparsePrivateUse1,
                                   c10::KernelFunction::makeFromBoxedFunction<&fall_back_sparse>(), kWhat));
}

}  // namespace octavo::sycl_device
