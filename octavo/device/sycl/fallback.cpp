// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/fallback.h"

#include <ATen/core/boxing/KernelFunction.h>

#include <memory>
#include <utility>
#include <vector>

#include "octavo/device/sycl/call.h"

namespace octavo::sycl_device {

namespace {

using torch::jit::Stack;

constexpr const char* kWhat = "octavo: the CPU's kernel on memory of sycl";

void keep(c10::RegistrationHandleRAII registration) {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  all->push_back(std::move(registration));
}

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

/// Gives `key` every operator that `cpu_key` has and `key` has not.
void mirror(c10::DispatchKey cpu_key, c10::DispatchKey key, bool is_sparse) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(cpu_key)) {
    const auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(key)) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Fallback>(*op, is_sparse));
    keep(dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, kWhat));
  }
}

}  // namespace

void register_fallback() {
  // An operator that the CPU has is registered by itself: else one with a functional and an out= form goes through
  // both.
  mirror(c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1, /*is_sparse=*/false);
  mirror(c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1, /*is_sparse=*/true);
  auto& dispatcher = c10::Dispatcher::singleton();
  keep(dispatcher.registerFallback(c10::DispatchKey::PrivateUse1,
                                   c10::KernelFunction::makeFromBoxedFunction<&fall_back>(), kWhat));
  keep(dispatcher.registerFallback(c10::DispatchKey::SparsePrivateUse1,
                                   c10::KernelFunction::makeFromBoxedFunction<&fall_back_sparse>(), kWhat));
}

}  // namespace octavo::sycl_device
