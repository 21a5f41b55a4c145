// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/step_memory.h"

#include <ATen/ATen.h>

#include "octavo/optim/flat.h"

namespace octavo {

namespace {

FloatFormat format_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return FloatFormat::float32;
  return dtype == at::kBFloat16 ? FloatFormat::bfloat16 : FloatFormat::float16;
}

/// Returns the memory order in which a parameter is walked: its own, or row-major where codes or random rounding are
/// used. Neither the blocks of codes nor the places from which rounding is drawn may depend on the memory order.
at::Tensor walked_order(const StepTensors& tensors, std::size_t i) {
  const at::Tensor& parameter = tensors.parameters[i];
  const bool has_codes = tensors.means[i].scalar_type() == at::kByte;
  const bool is_drawn = tensors.rounding_seed && parameter.scalar_type() == at::kBFloat16;
  if (!has_codes && !is_drawn) return order_of(parameter);
  return parameter.is_contiguous() ? parameter : row_major(parameter);
}

/// Returns those of a parameter's tensors that lie in another memory order than it is walked in. Kernels work on copies
/// of them.
std::vector<at::Tensor> in_other_orders(const StepTensors& tensors, std::size_t i) {
  const at::Tensor order = walked_order(tensors, i);
  std::vector<at::Tensor> found;
  const at::TensorList lists[] = {tensors.parameters, tensors.gradients, tensors.means, tensors.squares, tensors.tails};
  for (const at::TensorList list : lists) {
    const bool is_walked = is_given(list, i) && list[i].sizes() == order.sizes();  // codes of 4 bits are flat
    if (is_walked && !has_order_of(list[i], order)) found.push_back(list[i]);
  }
  return found;
}

}  // namespace

FlatTensors::FlatTensors(const StepTensors& tensors, std::size_t i, CopyRoom* room)
    : room_(room),
      parameter_(i),
      device_(tensors.parameters[i].device()),
      order_(walked_order(tensors, i)),
      count_(order_.numel()) {
  const at::Tensor& parameter = tensors.parameters[i];
  const at::Tensor& gradient = tensors.gradients[i];
  operands_.parameter = memory_of(parameter);
  operands_.parameter_format = format_of(parameter.scalar_type());
  operands_.gradient = memory_of(gradient, /*is_read_only=*/true);
  operands_.gradient_format = format_of(gradient.scalar_type());
  operands_.mean = view_of(tensors, tensors.means, tensors.mean_scales, i);
  if (!tensors.squares.empty()) operands_.square = view_of(tensors, tensors.squares, tensors.square_scales, i);
  if (is_given(tensors.tails, i)) operands_.tail = static_cast<std::int8_t*>(memory_of(tensors.tails[i]));
  if (tensors.gradient_factor) operands_.gradient_factor = tensors.gradient_factor->const_data_ptr<float>();
  if (tensors.nonfinite)
    operands_.nonfinite = reinterpret_cast<std::uint32_t*>(tensors.nonfinite->mutable_data_ptr<std::int32_t>());
  if (tensors.rounding_seed) {
    const auto number = tensors.numbers.empty() ? i : static_cast<std::size_t>(tensors.numbers[i]);
    operands_.rounds_at_random = true;
    operands_.rounding_key = rules::derive_key(*tensors.rounding_seed, number);
    if (!tensors.first_elements.empty()) operands_.first = static_cast<std::uint64_t>(tensors.first_elements[i]);
  }
}

void FlatTensors::write_back() {
  for (auto& [tensor, copy] : written_copies_) tensor.copy_(copy);
}

void* FlatTensors::memory_of(const at::Tensor& tensor, bool is_read_only) {
  if (has_order_of(tensor, order_)) return tensor.data_ptr();
  at::Tensor copy = room_->copy_of(tensor, order_, tensor.scalar_type());
  void* const memory = copy.data_ptr();
  if (is_read_only) {
    read_copies_.push_back(std::move(copy));
  } else {
    written_copies_.emplace_back(tensor, std::move(copy));
  }
  return memory;
}

StateView FlatTensors::view_of(const StepTensors& tensors, at::TensorList values, at::TensorList scales,
                               std::size_t i) {
  const StateFormat format = format_of_state(values[i], tensors.code_bits);
  void* const memory = format == StateFormat::bits4 ? values[i].data_ptr() : memory_of(values[i]);
  return {memory, is_given(scales, i) ? scales[i].mutable_data_ptr<float>() : nullptr, format};
}

Copied::Copied(const StepTensors& tensors) : is_copied(tensors.parameters.size()) {
  for (std::size_t i = 0; i < is_copied.size(); ++i) {
    std::int64_t bytes = 0;
    for (const at::Tensor& one : in_other_orders(tensors, i)) {
      bytes += CopyRoom::size_bytes(one.numel(), one.scalar_type());
    }
    is_copied[i] = bytes > 0;
    if (is_copied[i]) room.reserve(bytes, tensors.parameters[i].device());
  }
}

FlatTensors Copied::flat(const StepTensors& tensors, std::size_t i) {
  room.clear();
  return FlatTensors(tensors, i, &room);
}

}  // namespace octavo
