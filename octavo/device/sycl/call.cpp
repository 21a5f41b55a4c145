// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include "octavo/device/sycl/allocators.h"
#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/device/sycl/twins.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

// ---- what the schema says

OperatorTraits::OperatorTraits(const c10::OperatorHandle& op, bool is_sparse)
    : arguments(op.schema().arguments().size()), cpu_tensors(cpu_tensors_of(op)), is_sparse(is_sparse) {
  const c10::FunctionSchema& schema = op.schema();
  is_collective = schema.name().starts_with("c10d::");
  const bool is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (std::size_t i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) written.push_back(i);
    const auto* optional = argument.type()->castRaw<c10::OptionalType>();
    const bool is_generator = optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
    if (is_random && is_generator) generator = i;
  }
}

// ---- the call

namespace {

using torch::jit::Stack;

/// The device that an argument names or lies on.
std::optional<c10::DeviceIndex> device_of(const c10::IValue& value) {
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    return device.type() == kType && device.has_index() ? std::optional(device.index()) : std::nullopt;
  }
  std::optional<c10::DeviceIndex> first;
  for_tensors(value, [&](const at::Tensor& tensor) {
    if (!first && is_ours(tensor)) first = tensor.device().index();
  });
  return first;
}

/// One call: takes the arguments to the CPU and the results back to the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const OperatorTraits& traits, Stack* stack)
      : op_(op),
        traits_(traits),
        stack_(stack),
        first_(stack->size() - traits.arguments),
        device_(device_of_call()),
        twins_(device_) {}

  void run() {
    const c10::ArrayRef<c10::IValue> arguments(stack_->data() + first_, traits_.arguments);
    require_same_device(op_, traits_.cpu_tensors, arguments, traits_.written);
    require_of_device(arguments);
    const c10::OptionalDeviceGuard guard(c10::Device(kType, device_));  // where torch makes memory without being told
    settle(device_);
    const OnDeviceMemory scope(device_);
    const auto written = written_tensors();
    for (std::size_t i = first_; i < stack_->size(); ++i) to_cpu((*stack_)[i], i - first_);
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
      if (traits_.is_sparse)
        op_.callBoxed(stack_);  // strided tensors may be among them: the twins decide which kernel runs
      else
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    }
    for (const at::Tensor& tensor : written) twins_.update(tensor);
    for (std::size_t i = first_; i < stack_->size(); ++i) to_device((*stack_)[i]);
  }

 private:
  c10::DeviceIndex device_of_call() const {
    for (std::size_t i = first_; i < stack_->size(); ++i) {
      if (const auto device = device_of((*stack_)[i])) return *device;
    }
    return current_device();
  }

  /// Throws where the device has nothing in the call but a generator, for which alone torch calls its kernel.
  static void require_of_device(c10::ArrayRef<c10::IValue> arguments) {
    const auto generator =
        std::find_if(arguments.begin(), arguments.end(), [](const c10::IValue& value) { return value.isGenerator(); });
    if (generator == arguments.end()) return;
    const bool is_of_device = std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
      return (value.isDevice() && value.toDevice().type() == kType) || device_of(value);
    });
    if (is_of_device) return;
    fail(ErrorCode::invalid_argument, "device.fallback", "expected a generator of cpu, got one of ",
         generator->toGenerator().device().str());
  }

  std::vector<at::Tensor> written_tensors() const {
    std::vector<at::Tensor> written;
    for (const std::size_t position : traits_.written) {
      for_tensors((*stack_)[first_ + position], [&](const at::Tensor& tensor) { written.push_back(tensor); });
    }
    return written;
  }

  at::Tensor twin_of(const at::Tensor& tensor) { return tensor.defined() ? twins_.twin_of(tensor) : tensor; }

  void to_cpu(c10::IValue& value, std::size_t position) {
    if (value.isTensor()) {
      value = twin_of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> twins;
      for (const at::Tensor& tensor : value.toTensorVector()) twins.push_back(twin_of(tensor));
      value = std::move(twins);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> twins;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        twins.push_back(tensor ? std::optional(twin_of(*tensor)) : std::nullopt);
      }
      value = std::move(twins);
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator()) {
      value = cpu_generator_of(value.toGenerator(), device_);
    } else if (value.isNone() && traits_.generator == position) {
      value = cpu_generator_of(default_generator(device_), device_);
    }
  }

  void to_device(c10::IValue& value) {
    if (value.isTensor()) {
      value = twins_.original_of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> originals;
      for (const at::Tensor& tensor : value.toTensorVector()) originals.push_back(twins_.original_of(tensor));
      value = std::move(originals);
    }
  }

  const c10::OperatorHandle& op_;
  const OperatorTraits& traits_;
  Stack* stack_;
  std::size_t first_;
  c10::DeviceIndex device_;
  Twins twins_;
};

}  // namespace

void call_on_cpu(const c10::OperatorHandle& op, const OperatorTraits& traits, Stack* stack) {
  if (traits.is_sparse && traits.is_collective) {  // the sum arrives in new memory after this call has returned
    fail(ErrorCode::unsupported, "device.fallback", op.schema().name(),
         " takes only strided tensors on sycl; this one has layout Sparse: make it dense with .to_dense()");
  }
  Call(op, traits, stack).run();
}

}  // namespace octavo::sycl_device
