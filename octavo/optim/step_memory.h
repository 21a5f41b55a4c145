// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "octavo/kernels/step_operands.h"
#include "octavo/optim/flat.h"
#include "octavo/optim/step_tensors.h"

/// The tensors of a step as the flat memory that kernels work on.
namespace octavo {

/// A parameter's tensors as flat memory. Those that are not flat are copied to `room`.
class FlatTensors {
 public:
  /// `room`: null where all tensors are flat.
  FlatTensors(const StepTensors& tensors, std::size_t i, CopyRoom* room);

  std::size_t parameter() const { return parameter_; }  // its place in the lists
  c10::Device device() const { return device_; }
  std::int64_t count() const { return count_; }
  const StepOperands& operands() const { return operands_; }

  /// Copies what the step has changed in copies back to where it belongs.
  void write_back();

 private:
  void* memory_of(const at::Tensor& tensor, bool is_read_only = false);
  StateView view_of(const StepTensors& tensors, at::TensorList values, at::TensorList scales, std::size_t i);

  CopyRoom* room_;
  std::size_t parameter_;
  c10::Device device_;
  at::Tensor order_;
  std::int64_t count_;
  StepOperands operands_ = {};
  std::vector<std::pair<at::Tensor, at::Tensor>> written_copies_;
  std::vector<at::Tensor> read_copies_;
};

/// The parameters that are not stepped in place, and the room for the copies of any one of them.
struct Copied {
  std::vector<bool> is_copied;  // by parameter
  CopyRoom room = {};

  /// Throws what an allocation throws.
  explicit Copied(const StepTensors& tensors);
  /// Returns the parameter as flat memory, its copies in place of those of the parameter before.
  FlatTensors flat(const StepTensors& tensors, std::size_t i);
};

}  // namespace octavo
