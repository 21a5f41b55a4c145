// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <vector>

namespace octavo::sycl_device {

/// Which tensors on the CPU an operator takes beside those of the device: the same as beside CUDA's.
enum class CpuTensors {
  none,
  one_number,  // one 0-dim input: torch's element-wise operators
  numbers,     // any 0-dim inputs
  indices,     // indices of any shape into a tensor of the device
  put,         // indices, and a value of one element
  all,
};

CpuTensors cpu_tensors_of(const c10::OperatorHandle&);

/// Throws c10::Error in torch's words where CUDA refuses the devices of the tensors, or where they lie on two devices
/// of sycl. `arguments` are those of a call; the operator writes to the ones at the positions `written`.
void require_same_device(const c10::OperatorHandle&, CpuTensors, c10::ArrayRef<c10::IValue> arguments,
                         const std::vector<std::size_t>& written);

/// Calls visit(tensor) for an argument that is a tensor, or for the tensors of a list; not for undefined ones.
template <class Visit>
void for_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) for_tensors(element, visit);
  }
}

}  // namespace octavo::sycl_device
