// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/step_tensors.h"

#include <ATen/ATen.h>

#include <string>

#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

bool is_step_float(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf; }

/// Says which of the step's parameters is meant.
struct Named {
  const char* where;
  const char* what;
  std::size_t parameter;

  [[noreturn]] void refuse(const std::string& expected, const at::Tensor& got) const {
    fail(ErrorCode::invalid_argument, where, "expected ", what, " ", parameter, " as ", expected, ", got ",
         described(got));
  }
};

std::string described(const char* dtype, at::IntArrayRef sizes, c10::Device device) {
  return c10::str(dtype, sizes, " on ", device.str());
}

void require_writable(const at::Tensor& written, const Named& named) {
  if (is_writable(written)) return;  // the name is made only for the error: it would take longer than the check
  octavo::require_writable(written, named.where, c10::str(named.what, " ", named.parameter).c_str());
}

/// Returns the sizes of the codes of a parameter's state. Those of 4 bits tell a parameter's shape, too, so that the
/// state of another parameter of as many elements is refused: two codes of a row share a byte, or of all elements where
/// rows are odd.
std::vector<std::int64_t> code_sizes(at::IntArrayRef sizes, int code_bits) {
  std::vector<std::int64_t> all(sizes.begin(), sizes.end());
  if (code_bits == 8) return all;
  if (all.empty() || all.back() % 2 != 0) return {divide_up(c10::multiply_integers(all), 2)};
  all.back() /= 2;
  return all;
}

void require_values(const at::Tensor& values, const at::Tensor& parameter, int code_bits, const Named& named) {
  const bool is_float = values.scalar_type() == at::kFloat;
  const std::vector<std::int64_t> sizes = code_sizes(parameter.sizes(), code_bits);
  const bool has_shape = values.sizes() == (is_float ? parameter.sizes() : at::IntArrayRef(sizes));
  const bool has_order =
      is_float || values.is_contiguous();  // codes must be row-major: a scale is for elements that follow each other
  if ((is_float || values.scalar_type() == at::kByte) && has_shape && has_order &&
      values.device() == parameter.device())
    return;
  const at::Device device = parameter.device();
  const std::string codes =
      code_bits == 8 ? described("uint8, row-major, ", parameter.sizes(), device) : described("uint8", sizes, device);
  named.refuse(c10::str(described("float32", parameter.sizes(), device), " or ", codes), values);
}

void require_scales(at::TensorList scales, std::size_t i, const at::Tensor& values, const at::Tensor& parameter,
                    int code_bits, const Named& named) {
  if (values.scalar_type() == at::kFloat || parameter.numel() == 0) return;
  const auto block = static_cast<std::int64_t>(codes_per_scale(format_of_state(values, code_bits)));
  const std::int64_t blocks = divide_up(parameter.numel(), block);
  if (!is_given(scales, i)) {
    fail(ErrorCode::invalid_argument, named.where, "expected ", named.what, " ", i, ", float32[", blocks,
         "], for a state that is codes, got none");
  }
  const at::Tensor& one = scales[i];
  if (one.scalar_type() == at::kFloat && one.dim() == 1 && one.numel() == blocks && one.is_contiguous() &&
      one.device() == parameter.device()) {
    return;
  }
  named.refuse(described("float32", {blocks}, parameter.device()), one);
}

void require_state_of(const StepTensors& tensors, std::size_t i, at::TensorList values, at::TensorList scales,
                      const char* where, const char* what, const char* scales_what) {
  const at::Tensor& parameter = tensors.parameters[i];
  require_writable(values[i], {where, what, i});
  require_values(values[i], parameter, tensors.code_bits, {where, what, i});
  require_scales(scales, i, values[i], parameter, tensors.code_bits, {where, scales_what, i});
}

void require_floats(const at::Tensor& tensor, const at::Tensor& parameter, const Named& named) {
  if (tensor.defined() && is_step_float(tensor.scalar_type()) && tensor.sizes() == parameter.sizes() &&
      tensor.device() == parameter.device() && tensor.layout() == at::kStrided) {
    return;
  }
  named.refuse(described("strided float32, bfloat16 or float16, ", parameter.sizes(), parameter.device()), tensor);
}

void require_tail(const at::Tensor& tail, const at::Tensor& parameter, const Named& named) {
  if (tail.scalar_type() == at::kChar && parameter.scalar_type() == at::kBFloat16 &&
      tail.sizes() == parameter.sizes() && tail.device() == parameter.device()) {
    return;
  }
  named.refuse("int8 of the shape of a bfloat16 parameter", tail);
}

/// Checks what is one number for all parameters.
void require_number(const std::optional<at::Tensor>& number, at::ScalarType dtype, c10::Device device,
                    const char* where, const char* what) {
  if (!number) return;
  if (!number->defined())
    fail(ErrorCode::invalid_argument, where, "expected ", what, "[] or none, got an undefined one");
  if (number->scalar_type() == dtype && number->dim() == 0 && number->device() == device) return;
  fail(ErrorCode::invalid_argument, where, "expected ", what, "[] on ", device.str(), ", got ",
       toString(number->scalar_type()), number->sizes(), " on ", number->device().str());
}

}  // namespace

bool is_given(at::TensorList list, std::size_t i) {
  return i < list.size() && list[i].defined() && list[i].numel() > 0;
}

StateFormat format_of_state(const at::Tensor& values, int code_bits) {
  if (values.scalar_type() == at::kFloat) return StateFormat::float32;
  return code_bits == 8 ? StateFormat::bits8 : StateFormat::bits4;
}

void require_valid(const StepTensors& tensors, bool has_square, const char* where) {
  const std::size_t count = tensors.parameters.size();
  require_length(tensors.gradients.size(), count, where, "gradients");
  require_length(tensors.means.size(), count, where, "means");
  if (has_square) require_length(tensors.squares.size(), count, where, "squares");
  if (!tensors.tails.empty()) require_length(tensors.tails.size(), count, where, "tails");
  if (!tensors.numbers.empty()) require_length(tensors.numbers.size(), count, where, "numbers");
  if (!tensors.first_elements.empty()) require_length(tensors.first_elements.size(), count, where, "first elements");
  if (tensors.code_bits != 8 && tensors.code_bits != 4) {
    fail(ErrorCode::invalid_argument, where, "expected codes of 8 or 4 bits, got ", tensors.code_bits);
  }
  if (count == 0) return;
  require_writable(tensors.parameters[0], {where, "parameter", 0});
  const c10::Device device = tensors.parameters[0].device();
  require_number(tensors.gradient_factor, at::kFloat, device, where, "a gradient factor as float32");
  require_number(tensors.nonfinite, at::kInt, device, where, "a nonfinite flag as int32");
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor& parameter = tensors.parameters[i];
    require_writable(parameter, {where, "parameter", i});
    require_floats(parameter, parameter, {where, "parameter", i});
    if (parameter.device() != device) {
      Named{where, "parameter", i}.refuse(c10::str("on ", device.str(), " as the first"), parameter);
    }
    require_floats(tensors.gradients[i], parameter, {where, "gradient", i});
    require_state_of(tensors, i, tensors.means, tensors.mean_scales, where, "mean", "scales of mean");
    if (has_square) {
      require_state_of(tensors, i, tensors.squares, tensors.square_scales, where, "square", "scales of square");
      if (tensors.squares[i].scalar_type() != tensors.means[i].scalar_type()) {
        Named{where, "square", i}.refuse("of the mean's dtype", tensors.squares[i]);
      }
    }
    if (!is_given(tensors.tails, i)) continue;
    require_tail(tensors.tails[i], parameter, {where, "tail", i});
    require_writable(tensors.tails[i], {where, "tail", i});
  }
}

}  // namespace octavo
