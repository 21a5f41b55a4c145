// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "octavo/export.h"
#include "octavo/kernels/step_operands.h"

/// What the fused steps are given, and the checks of it.
namespace octavo {

/// The tensors of one step, all on one device. A list has an element for each parameter, or is empty unless it says
/// otherwise.
///
/// A state may be float32 of the parameter's shape, with an undefined or empty tensor for its scales. Or it is codes
/// with float32[blocks] for scales (rules/state_codes.h), both row-major. In 8 bits a block has 256 elements, and the
/// codes are uint8 of the parameter's shape. In 4 bits it has 128, and two codes share a byte: of a row, so that the
/// last dimension is half as long, or of all elements, uint8[elements / 2, rounded up], where rows are odd. A state
/// before its first step is zeros: codes and scales, too.
///
/// A tensor in another memory order than the parameter costs a copy. With codes, and with elements that are rounded at
/// random, any order other than row-major costs one.
struct StepTensors {
  std::vector<at::Tensor> parameters;               // float32, bfloat16 or float16; never an empty list
  std::vector<at::Tensor> gradients;                // one of these, of the parameter's shape; never an empty list
  std::vector<at::Tensor> means, mean_scales = {};  // the momentum; `means` is never an empty list
  std::vector<at::Tensor> squares = {}, square_scales = {};  // the variance, where the rule has one
  std::vector<at::Tensor> tails = {};              // int8 of a bfloat16 parameter's shape and order: 8 more bits of it
  int code_bits = 8;                               // bits of each code
  std::optional<at::Tensor> gradient_factor = {};  // float32[]: gradients are multiplied by it
  std::optional<at::Tensor> nonfinite = {};        // int32[]: becomes 1 where a gradient was not finite
  /// The seed by which bfloat16 parameters without tails are rounded at random; not given: they are rounded to nearest.
  /// The random bits are drawn from this seed, the parameter's number in `numbers` (empty: its place in the lists), and
  /// an element's place in the parameter. Where a tensor is a part of a parameter, `first_elements` (empty: zeros) has
  /// the place of its first element in the whole.
  std::optional<std::uint64_t> rounding_seed = {};
  std::vector<std::int64_t> numbers = {};
  std::vector<std::int64_t> first_elements = {};
};

/// Throws Error invalid_argument, in the name of `where`, unless the tensors are as described above.
OCTAVO_API void require_valid(const StepTensors& tensors, bool has_square, const char* where);

/// Whether a list has a tensor with elements for parameter `i`.
OCTAVO_API bool is_given(at::TensorList list, std::size_t i);

/// Returns how a state's values are kept; `code_bits` as in StepTensors.
OCTAVO_API StateFormat format_of_state(const at::Tensor& values, int code_bits);

}  // namespace octavo
