// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octavo/device/own_values.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/flat.h"
#include "octavo/optim/pager.h"

namespace octavo {

namespace {

constexpr std::int64_t kBlockElements = kStepBlock;
constexpr std::int64_t kCopyAlignment = 64;  // in bytes
constexpr std::int64_t kGrainBlocks = kGrainElements / kBlockElements;

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return count / by + (count % by != 0); }

bool is_given(at::TensorList list, std::size_t i) {
  return i < list.size() && list[i].defined() && list[i].numel() > 0;
}

bool is_step_float(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf; }

FloatFormat format_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return FloatFormat::float32;
  return dtype == at::kBFloat16 ? FloatFormat::bfloat16 : FloatFormat::float16;
}

StateFormat format_of_state(const at::Tensor& values, int code_bits) {
  if (values.scalar_type() == at::kFloat) return StateFormat::float32;
  return code_bits == 8 ? StateFormat::bits8 : StateFormat::bits4;
}

// ---- checks

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
  octavo::require_writable(written, named.where, c10::str(named.what, " ", named.parameter).c_str());
}

void require_values(const at::Tensor& values, const at::Tensor& parameter, int code_bits, const Named& named) {
  const bool is_float = values.scalar_type() == at::kFloat;
  const std::int64_t code_bytes = divided_up(parameter.numel() * code_bits, 8);
  const bool has_shape = is_float || code_bits == 8 ? values.sizes() == parameter.sizes()
                                                    : values.dim() == 1 && values.numel() == code_bytes;
  const bool has_order =
      is_float || values.is_contiguous();  // codes must be row-major: a scale is for elements that follow each other
  if ((is_float || values.scalar_type() == at::kByte) && has_shape && has_order &&
      values.device() == parameter.device())
    return;
  const at::Device device = parameter.device();
  named.refuse(described("float32", parameter.sizes(), device) + " or " +
                   (code_bits == 8 ? described("uint8, row-major, ", parameter.sizes(), device)
                                   : described("uint8", {code_bytes}, device)),
               values);
}

void require_scales(at::TensorList scales, std::size_t i, const at::Tensor& values, const at::Tensor& parameter,
                    int code_bits, const Named& named) {
  if (values.scalar_type() == at::kFloat || parameter.numel() == 0) return;
  const auto block = static_cast<std::int64_t>(state_block(format_of_state(values, code_bits)));
  const std::int64_t blocks = divided_up(parameter.numel(), block);
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

// ---- memory

/// Returns a tensor of the parameter's sizes and in row-major order, without memory.
at::Tensor row_major(const at::Tensor& parameter) {
  return at::empty(parameter.sizes(), parameter.options().device(at::kMeta));
}

/// Whether kernels may walk a tensor of the parameter's shape as flat memory in the parameter's order.
bool has_order_of(const at::Tensor& tensor, const at::Tensor& order) {
  return tensor.is_non_overlapping_and_dense() && tensor.strides() == order.strides() && has_own_values(tensor);
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

/// Whether kernels can work in the tensors' own memory.
bool is_in_place(const StepTensors& tensors, std::size_t i) {
  const at::Tensor order = walked_order(tensors, i);
  const auto is_walked = [&](const at::Tensor& tensor) { return has_order_of(tensor, order); };
  const auto is_state_walked = [&](at::TensorList values) {
    return !is_given(values, i) || values[i].sizes() != order.sizes() ||
           is_walked(values[i]);  // codes of 4 bits are flat
  };
  return is_walked(tensors.parameters[i]) && is_walked(tensors.gradients[i]) && is_state_walked(tensors.means) &&
         is_state_walked(tensors.squares) && is_state_walked(tensors.tails);
}

/// Returns the bytes of copies of all of a parameter's tensors.
std::int64_t copy_bytes(const StepTensors& tensors, std::size_t i) {
  std::int64_t width = tensors.parameters[i].element_size() + tensors.gradients[i].element_size();
  for (const at::TensorList list : {tensors.means, tensors.squares, tensors.tails}) {
    if (is_given(list, i)) width += list[i].element_size();
  }
  return width * tensors.parameters[i].numel() + 5 * kCopyAlignment;
}

/// Memory for the copies of one parameter at a time. It is allocated before any parameter changes: a step that finds no
/// memory has changed nothing.
class CopyRoom {
 public:
  CopyRoom(std::int64_t bytes, c10::Device device) : bytes_(at::empty({bytes}, at::dtype(at::kByte).device(device))) {}

  /// Forgets the copies that were made so far.
  void clear() { used_ = 0; }
  /// Returns a copy of a tensor in the order of another one.
  at::Tensor copy_of(const at::Tensor& tensor, const at::Tensor& order) {
    const std::int64_t bytes = tensor.numel() * tensor.element_size();
    const at::Tensor room = bytes_.narrow(0, used_, bytes).view(tensor.scalar_type());
    used_ += divided_up(bytes, kCopyAlignment) * kCopyAlignment;
    return room.as_strided(order.sizes(), order.strides()).copy_(tensor);
  }

 private:
  at::Tensor bytes_;
  std::int64_t used_ = 0;
};

/// A parameter's tensors as flat memory. Those that are not flat are copied to `room`.
class FlatTensors {
 public:
  FlatTensors(const StepTensors& tensors, std::size_t i, CopyRoom* room)
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

  std::size_t parameter() const { return parameter_; }  // its place in the lists
  c10::Device device() const { return device_; }
  std::int64_t count() const { return count_; }
  std::int64_t blocks() const { return divided_up(count_, kBlockElements); }
  const StepOperands& operands() const { return operands_; }

  void write_back() {
    for (auto& [tensor, copy] : written_copies_) tensor.copy_(copy);
  }

 private:
  void* memory_of(const at::Tensor& tensor, bool is_read_only = false) {
    if (has_order_of(tensor, order_)) return tensor.data_ptr();
    at::Tensor copy = room_->copy_of(tensor, order_);
    void* const memory = copy.data_ptr();
    if (is_read_only) {
      read_copies_.push_back(std::move(copy));
    } else {
      written_copies_.emplace_back(tensor, std::move(copy));
    }
    return memory;
  }

  StateView view_of(const StepTensors& tensors, at::TensorList values, at::TensorList scales, std::size_t i) {
    const StateFormat format = format_of_state(values[i], tensors.code_bits);
    void* const memory = format == StateFormat::bits4 ? values[i].data_ptr() : memory_of(values[i]);
    return {memory, is_given(scales, i) ? scales[i].mutable_data_ptr<float>() : nullptr, format};
  }

  CopyRoom* room_;  // null where all tensors are flat
  std::size_t parameter_;
  c10::Device device_;
  at::Tensor order_;
  std::int64_t count_;
  StepOperands operands_ = {};
  std::vector<std::pair<at::Tensor, at::Tensor>> written_copies_;
  std::vector<at::Tensor> read_copies_;
};

/// Shares the blocks of some parameters, numbered through, out to threads.
void share_out(const std::vector<FlatTensors>& all, const MakeStep& make) {
  if (all.empty()) return;
  std::vector<std::int64_t> ends;
  for (const FlatTensors& one : all) ends.push_back((ends.empty() ? 0 : ends.back()) + one.blocks());
  const LaunchScope scope(all.front().device());
  for_parts(c10::kCPU, ends.back(), kGrainBlocks, [&](std::int64_t block, std::int64_t last) {
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), block) - ends.begin());
    for (; block < last; ++i) {
      const std::int64_t begin = ends[i] - all[i].blocks(), end = std::min(ends[i], last);
      const std::int64_t first = (block - begin) * kBlockElements;
      const std::int64_t stop = std::min((end - begin) * kBlockElements, all[i].count());
      make(scope, all[i].parameter(), static_cast<std::uint64_t>(stop - first),
           all[i].operands().from(static_cast<std::uint64_t>(first)));
      block = end;
    }
  });
}

/// The parameters that are not stepped in place, and the room for the copies of any one of them.
struct Copied {
  std::vector<bool> is_copied;        // by parameter
  std::optional<CopyRoom> room = {};  // none where no parameter is copied

  explicit Copied(const StepTensors& tensors) : is_copied(tensors.parameters.size()) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < is_copied.size(); ++i) {
      is_copied[i] = !is_in_place(tensors, i);
      if (is_copied[i]) bytes = std::max(bytes, copy_bytes(tensors, i));
    }
    if (bytes > 0) room.emplace(bytes, tensors.parameters.front().device());
  }
  /// Returns the parameter as flat memory, its copies in place of those of the parameter before.
  FlatTensors flat(const StepTensors& tensors, std::size_t i) {
    if (room) room->clear();
    return FlatTensors(tensors, i, room ? &*room : nullptr);
  }
};

/// Makes the step of all parameters that need no copies at once, then of the others one by one: copies of all of them
/// could take more memory than their states.
void step_on_threads(const StepTensors& tensors, const MakeStep& make) {
  Copied copied(tensors);
  std::vector<FlatTensors> in_place;
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    if (!copied.is_copied[i]) in_place.emplace_back(tensors, i, nullptr);
  }
  share_out(in_place, make);
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    if (!copied.is_copied[i]) continue;
    std::vector<FlatTensors> one = {copied.flat(tensors, i)};
    share_out(one, make);
    one.front().write_back();
  }
}

/// Returns what is kept for a parameter from step to step.
std::vector<at::Tensor> kept_of(const StepTensors& tensors, std::size_t i) {
  std::vector<at::Tensor> kept;
  for (const at::TensorList list :
       {tensors.means, tensors.mean_scales, tensors.squares, tensors.square_scales, tensors.tails}) {
    if (is_given(list, i)) kept.push_back(list[i]);
  }
  return kept;
}

/// Makes one launch for each parameter, on the streams of their devices.
void step_on_devices(const StepTensors& tensors, const MakeStep& make) {
  Copied copied(tensors);
  std::vector<std::vector<at::Tensor>> kept;
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) kept.push_back(kept_of(tensors, i));
  Pager pager(tensors.parameters.front().device(), std::move(kept));
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    pager.before(i);
    if (tensors.parameters[i].numel() == 0) continue;
    FlatTensors one = copied.flat(tensors, i);
    make(LaunchScope(one.device()), i, static_cast<std::uint64_t>(one.count()), one.operands());
    one.write_back();
  }
  pager.finish();
}

/// Checks what is one number for all parameters.
void require_number(const std::optional<at::Tensor>& number, at::ScalarType dtype, c10::Device device,
                    const char* where, const char* what) {
  if (!number) return;
  if (number->scalar_type() == dtype && number->dim() == 0 && number->device() == device) return;
  fail(ErrorCode::invalid_argument, where, "expected ", what, "[] on ", device.str(), ", got ",
       toString(number->scalar_type()), number->sizes(), " on ", number->device().str());
}

}  // namespace

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

void make_step(const StepTensors& tensors, const MakeStep& make) {
  if (tensors.parameters.empty()) return;
  const c10::NoGradGuard not_differentiated;
  if (tensors.parameters.front().is_cpu()) {
    step_on_threads(tensors, make);
  } else {
    step_on_devices(tensors, make);
  }
}

}  // namespace octavo
