// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/same_device.h"

#include <ATen/core/op_registration/adaption.h>

#include <algorithm>
#include <string>
#include <string_view>

// torch checks devices in three places where the CPU's kernels do not pass: in the wrapper that it generates for an
// operator on CUDA; in TensorIterator, for operators without such a wrapper (`device_check: NoCheck` in its
// native_functions.yaml); and by hand, where indices are taken. tests/python/sycl/test_sycl_same_device.py checks the
// names here against that file.
namespace octavo::sycl_device {

namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

constexpr std::string_view kElementWise =  // each between two spaces
    " __ilshift__ __irshift__ __lshift__ __rshift__ add addcdiv addcmul atan2 binary_cross_entropy binomial "
    "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign div eq fill "
    "floor_divide fmax fmin fmod ge gt heaviside hypot index_fill le lerp logical_and logical_or logical_xor "
    "lt masked_fill max maximum min minimum mse_loss mul ne pow remainder rsub smooth_l1_loss special_xlog1py "
    "special_zeta sub xlogy ";

bool is_element_wise(const std::string& name) {
  if (name.starts_with("special_") && name.find("_polynomial_") != std::string::npos) return true;
  return kElementWise.find(" " + name + " ") != std::string_view::npos;
}

[[noreturn]] void refuse(c10::Device one, c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ",
              other, "!");
}

/// The device of the first tensor that is not on the CPU.
c10::Device device_of(Arguments arguments) {
  c10::Device device = c10::kCPU;
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      if (device.is_cpu()) device = tensor.device();
    });
  }
  return device;
}

/// Throws, as torch's wrappers do, where a tensor is on another device.
void require_one_device(const c10::OperatorHandle& op, Arguments arguments) {
  std::optional<c10::Device> common;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      c10::impl::check_and_update_common_device(common, tensor, op.schema().name().c_str(),
                                                op.schema().arguments()[i].name().c_str());
    });
  }
}

/// Throws, as TensorIterator does, where a tensor is on another device. Up to `most` inputs may be numbers on the CPU.
void require_one_device_but_numbers(Arguments arguments, const std::vector<std::size_t>& written, std::size_t most) {
  const c10::Device common = device_of(arguments);
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_input = std::find(written.begin(), written.end(), i) == written.end();
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.device() == common) return;
      if (!is_input || tensor.dim() != 0 || !tensor.is_cpu()) refuse(common, tensor.device());
      TORCH_CHECK(++numbers <= most, "Trying to pass too many CPU scalars to non-CPU kernel!");
    });
  }
}

void require_one_device_or_cpu(Arguments arguments) {
  const c10::Device common = device_of(arguments);
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu() && tensor.device() != common) refuse(common, tensor.device());
    });
  }
}

// ---- indices: [tensor, indices, ...]

/// Whether the indices are one mask on that device.
bool are_one_mask(const c10::IValue& indices, c10::Device device) {
  int count = 0;
  bool is_mask = true;
  for_tensors(indices, [&](const at::Tensor& index) {
    ++count;
    is_mask = (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte) && index.device() == device;
  });
  return count == 1 && is_mask;
}

void require_device_of_indices(c10::Device tensor, const c10::IValue& indices) {
  for_tensors(indices, [&](const at::Tensor& index) {
    TORCH_CHECK(index.is_cpu() || index.device() == tensor, "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", tensor, ")");
  });
}

/// Checks the devices of tensor[indices] = values. Indices of the device into a tensor on the CPU are allowed, too.
void require_devices_to_put(Arguments arguments) {
  const at::Tensor &tensor = arguments[0].toTensor(), &values = arguments[2].toTensor();
  const c10::Device common = device_of(arguments);
  require_one_device_or_cpu(arguments);
  if (values.device() == tensor.device() || values.dim() == 0) return;
  const bool accumulate = arguments[3].toBool();
  if (!accumulate && values.is_cpu() && values.numel() == 1 && are_one_mask(arguments[1], common)) return;
  TORCH_CHECK(!accumulate || tensor.is_cpu(), "expected device ", tensor.device(), " but got device ", values.device(),
              " for value tensor");
  refuse(common, common == tensor.device() ? values.device() : tensor.device());
}

}  // namespace

CpuTensors cpu_tensors_of(const c10::OperatorHandle& op) {
  constexpr std::string_view kTorchs = "aten::";
  if (!op.schema().name().starts_with(kTorchs))
    return CpuTensors::numbers;  // torch makes no wrapper for others' operators
  std::string name = op.schema().name().substr(kTorchs.size());
  if (name == "index") return CpuTensors::indices;
  if (name == "_index_put_impl_") return CpuTensors::put;
  if (name == "bernoulli_" || name == "is_set_to") return CpuTensors::all;
  if (name == "where" || op.schema().overload_name() == "tensor_lr") return CpuTensors::numbers;
  if (name.ends_with('_') && !name.ends_with("__")) name.pop_back();  // in place
  return is_element_wise(name) ? CpuTensors::one_number : CpuTensors::none;
}

void require_same_device(const c10::OperatorHandle& op, CpuTensors cpu_tensors, Arguments arguments,
                         const std::vector<std::size_t>& written) {
  switch (cpu_tensors) {
    case CpuTensors::none: return require_one_device(op, arguments);
    case CpuTensors::one_number: return require_one_device_but_numbers(arguments, written, 1);
    case CpuTensors::numbers: return require_one_device_but_numbers(arguments, written, arguments.size());
    case CpuTensors::indices: return require_device_of_indices(arguments[0].toTensor().device(), arguments[1]);
    case CpuTensors::put: return require_devices_to_put(arguments);
    case CpuTensors::all: return require_one_device_or_cpu(arguments);
  }
}

}  // namespace octavo::sycl_device
