// SPDX-License-Identifier: Apache-2.0
// torch.ops.octavo: the schemas, the kernels for every device, and the fake kernels that torch.compile traces with.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "octavo/bindings/errors.h"
#include "octavo/bindings/fake.h"
#include "octavo/codec/sign_bits.h"
#include "octavo/optim/adamw.h"
#include "octavo/optim/lamb.h"
#include "octavo/optim/lion.h"
#include "octavo/optim/state_coding.h"
#include "octavo/optim/step.h"
#include "octavo/optim/zero_one_adam.h"

namespace octavo {

namespace {

at::Tensor packbits_op(const at::Tensor& tensor, std::optional<std::int64_t> input_size,
                       std::optional<std::int64_t> rank) {
  return as_torch_error([&] { return packbits(tensor, input_size.value_or(tensor.numel()), rank.value_or(0)); });
}

at::Tensor unpackbits_op(const at::Tensor& packed, std::int64_t input_size, std::optional<std::int64_t> rank) {
  return as_torch_error([&] { return unpackbits(packed, input_size, rank.value_or(0)); });
}

/// Counts a change, as torch's own operators do. Autograd then refuses a backward pass that needs the values as they
/// were.
void count_change(const at::Tensor& changed) {
  if (!changed.is_inference()) changed.unsafeGetTensorImpl()->bump_version();
}

void count_change(at::TensorList changed) {
  for (const at::Tensor& one : changed) count_change(one);
}

void unpackbits_out_op(const at::Tensor& packed, at::Tensor out) {
  as_torch_error([&] { unpackbits_out(packed, out); });
  count_change(out);
}

// SymInt is taken by value: otherwise the dispatcher does not see that a kernel takes symbolic sizes.

at::Tensor packbits_fake(const at::Tensor& tensor, std::optional<c10::SymInt> input_size, std::optional<std::int64_t>) {
  const c10::SymInt count = input_size.has_value() ? *input_size : tensor.sym_numel();
  return at::empty_symint({(count + 7) / 8}, tensor.options().dtype(at::kByte));
}

at::Tensor unpackbits_fake(const at::Tensor& packed, c10::SymInt input_size, std::optional<std::int64_t>) {
  return at::empty_symint({input_size}, packed.options().dtype(at::kFloat));
}

void adamw_op(at::Tensor parameter, const at::Tensor& gradient, at::Tensor mean, at::Tensor square, std::int64_t step,
              double lr, double beta1, double beta2, double eps, double weight_decay) {
  as_torch_error([&] { adamw_(parameter, gradient, mean, square, {lr, beta1, beta2, eps, weight_decay}, step); });
}

void freeze_variance_op(at::Tensor square, std::int64_t step, double beta2, double eps, double floor) {
  as_torch_error([&] { freeze_variance_(square, beta2, eps, floor, step); });
}

void frozen_adamw_op(at::Tensor parameter, const at::Tensor& update, at::Tensor mean, double step_size, double decay) {
  as_torch_error([&] { frozen_adamw_(parameter, update, mean, step_size, decay); });
}

void lamb_op(at::TensorList parameters, at::TensorList gradients, at::TensorList means, at::TensorList squares,
             at::IntArrayRef steps, at::Tensor coefficients, double lr, double beta1, double beta2, double eps,
             double weight_decay, double least_coefficient, double greatest_coefficient) {
  as_torch_error([&] {
    lamb_(parameters, gradients, means, squares, steps, coefficients,
          {lr, beta1, beta2, eps, weight_decay, least_coefficient, greatest_coefficient});
  });
}

using OptionalTensor = std::optional<at::Tensor>;

/// Returns what the operators of fused steps have in common.
StepTensors step_tensors(at::TensorList parameters, at::TensorList gradients, at::TensorList means,
                         at::TensorList mean_scales, at::TensorList tails, std::int64_t code_bits,
                         const OptionalTensor& gradient_factor, const OptionalTensor& nonfinite,
                         std::optional<std::int64_t> rounding_seed, at::IntArrayRef numbers,
                         at::IntArrayRef first_elements) {
  return {.parameters = parameters.vec(),
          .gradients = gradients.vec(),
          .means = means.vec(),
          .mean_scales = mean_scales.vec(),
          .tails = tails.vec(),
          .code_bits = static_cast<int>(code_bits),
          .gradient_factor = gradient_factor,
          .nonfinite = nonfinite,
          .rounding_seed = rounding_seed,
          .numbers = numbers.vec(),
          .first_elements = first_elements.vec()};
}

void adam_op(at::TensorList parameters, at::TensorList gradients, at::TensorList means, at::TensorList mean_scales,
             at::TensorList squares, at::TensorList square_scales, at::TensorList tails, at::IntArrayRef steps,
             double lr, double beta1, double beta2, double eps, double weight_decay, bool is_decay_decoupled,
             std::int64_t code_bits, const OptionalTensor& gradient_factor, const OptionalTensor& nonfinite,
             std::optional<std::int64_t> rounding_seed, at::IntArrayRef numbers, at::IntArrayRef first_elements) {
  StepTensors tensors = step_tensors(parameters, gradients, means, mean_scales, tails, code_bits, gradient_factor,
                                     nonfinite, rounding_seed, numbers, first_elements);
  tensors.squares = squares.vec();
  tensors.square_scales = square_scales.vec();
  as_torch_error([&] { adam_(tensors, steps, {lr, beta1, beta2, eps, weight_decay}, is_decay_decoupled); });
}

void lion_op(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta, at::TensorList scales,
             at::TensorList tails, double lr, double beta1, double beta2, double weight_decay, std::int64_t code_bits,
             const OptionalTensor& gradient_factor, const OptionalTensor& nonfinite,
             std::optional<std::int64_t> rounding_seed, at::IntArrayRef numbers, at::IntArrayRef first_elements) {
  const StepTensors tensors = step_tensors(parameters, gradients, momenta, scales, tails, code_bits, gradient_factor,
                                           nonfinite, rounding_seed, numbers, first_elements);
  as_torch_error([&] { lion_(tensors, {lr, beta1, beta2, weight_decay}); });
}

/// Refuses what adam_ and lion_ refuse, and where they would find no memory, before any of several calls has moved
/// something. Without squares it is lion_.
void require_step_op(at::TensorList parameters, at::TensorList gradients, at::TensorList means,
                     at::TensorList mean_scales, at::TensorList squares, at::TensorList square_scales,
                     at::TensorList tails, std::int64_t code_bits, const OptionalTensor& gradient_factor,
                     const OptionalTensor& nonfinite, std::optional<std::int64_t> rounding_seed) {
  StepTensors tensors = step_tensors(parameters, gradients, means, mean_scales, tails, code_bits, gradient_factor,
                                     nonfinite, rounding_seed, {}, {});
  tensors.squares = squares.vec();
  tensors.square_scales = square_scales.vec();
  const bool has_square = !squares.empty();
  as_torch_error([&] {
    require_valid(tensors, has_square, has_square ? "optim.adam" : "optim.lion");
    require_room(tensors);
  });
}

void encode_state_op(const at::Tensor& values, at::Tensor codes, at::Tensor scales, std::int64_t bits, bool is_signed) {
  as_torch_error([&] { encode_state_(values, codes, scales, {static_cast<int>(bits), is_signed}); });
}

at::Tensor decode_state_op(const at::Tensor& codes, const at::Tensor& scales, std::int64_t count, std::int64_t bits,
                           bool is_signed) {
  return as_torch_error([&] { return decode_state(codes, scales, count, {static_cast<int>(bits), is_signed}); });
}

at::Tensor decode_state_fake(const at::Tensor& codes, const at::Tensor&, c10::SymInt count, std::int64_t, bool) {
  return at::empty_symint({std::move(count)}, codes.options().dtype(at::kFloat));
}

void sign_step_op(at::TensorList parameters, at::TensorList updates, double lr, double weight_decay) {
  as_torch_error([&] { sign_step_(parameters, updates, lr, weight_decay); });
}

void zero_one_variance_op(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta,
                          at::TensorList squares, at::TensorList preconditioners, at::IntArrayRef steps,
                          at::IntArrayRef updates, at::ArrayRef<double> lrs, at::ArrayRef<double> weight_decays,
                          double beta1, double beta2, double eps, double floor) {
  as_torch_error([&] {
    zero_one_variance_(parameters, gradients, momenta, squares, preconditioners, steps, updates, lrs, weight_decays,
                       {.lr = 0, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = 0}, floor);
  });
}

void zero_one_local_op(at::TensorList parameters, at::TensorList gradients, at::TensorList preconditioners,
                       at::TensorList anchors, at::TensorList momenta, at::TensorList updates, double beta,
                       at::ArrayRef<double> step_sizes) {
  as_torch_error([&] {
    zero_one_local_(parameters, gradients, preconditioners, anchors, momenta, updates, beta, step_sizes.vec());
  });
}

void zero_one_sync_op(at::TensorList parameters, at::TensorList anchors, at::TensorList momenta, at::TensorList updates,
                      at::ArrayRef<double> decays, at::ArrayRef<double> totals) {
  as_torch_error([&] { zero_one_sync_(parameters, anchors, momenta, updates, decays.vec(), totals.vec()); });
}

/// An operator whose first argument is the parameters that it changes. It counts the change.
template <auto op>
struct Moving;
template <class Moved, class... Arguments, void (*op)(Moved, Arguments...)>
struct Moving<op> {
  static void call(Moved moved, Arguments... arguments) {
    op(moved, arguments...);
    count_change(moved);
  }
};

TORCH_LIBRARY(octavo, m) {
  const std::vector<at::Tag> compilable = {at::Tag::pt2_compliant_tag};
  m.def("packbits(Tensor tensor, SymInt? input_size=None, int? rank=None) -> Tensor", compilable);
  m.def("unpackbits(Tensor packed, SymInt input_size, int? rank=None) -> Tensor", compilable);
  // a name of its own, not an overload: torch.library.opcheck takes no operator with overloads
  m.def("unpackbits_out(Tensor packed, *, Tensor(a!) out) -> ()", compilable);
  m.def(
      "adamw_(Tensor(a!) parameter, Tensor gradient, Tensor(b!) mean, Tensor(c!) square, int step, float lr, "
      "float beta1, float beta2, float eps, float weight_decay) -> ()",
      compilable);
  m.def("freeze_variance_(Tensor(a!) square, int step, float beta2, float eps, float floor) -> ()", compilable);
  m.def("frozen_adamw_(Tensor(a!) parameter, Tensor update, Tensor(b!) mean, float step_size, float decay) -> ()",
        compilable);
  m.def(
      "lamb_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] means, Tensor(c!)[] squares, int[] steps, "
      "Tensor(d!) coefficients, float lr, float beta1, float beta2, float eps, float weight_decay, "
      "float least_coefficient, float greatest_coefficient) -> ()",
      compilable);
  m.def(
      "adam_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] means, Tensor(c!)[] mean_scales, "
      "Tensor(d!)[] squares, Tensor(e!)[] square_scales, Tensor(f!)[] tails, int[] steps, float lr, float beta1, "
      "float beta2, float eps, float weight_decay, bool is_decay_decoupled, int code_bits=8, "
      "Tensor? gradient_factor=None, Tensor(g!)? nonfinite=None, int? rounding_seed=None, int[] numbers=[], int[] "
      "first_elements=[]) -> ()",
      compilable);
  m.def(
      "lion_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momenta, Tensor(c!)[] scales, "
      "Tensor(d!)[] tails, float lr, float beta1, float beta2, float weight_decay, int code_bits=8, "
      "Tensor? gradient_factor=None, Tensor(e!)? nonfinite=None, int? rounding_seed=None, int[] numbers=[], int[] "
      "first_elements=[]) -> ()",
      compilable);
  m.def(
      "require_step(Tensor[] parameters, Tensor[] gradients, Tensor[] means, Tensor[] mean_scales, Tensor[] squares, "
      "Tensor[] square_scales, Tensor[] tails, int code_bits=8, Tensor? gradient_factor=None, "
      "Tensor? nonfinite=None, int? rounding_seed=None) -> ()",
      compilable);
  m.def("encode_state_(Tensor values, Tensor(a!) codes, Tensor(b!) scales, int bits, bool is_signed) -> ()",
        compilable);
  m.def("decode_state(Tensor codes, Tensor scales, SymInt count, int bits, bool is_signed) -> Tensor", compilable);
  m.def("sign_step_(Tensor(a!)[] parameters, Tensor[] updates, float lr, float weight_decay) -> ()", compilable);
  m.def(
      "zero_one_variance_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momenta, Tensor(c!)[] squares, "
      "Tensor(d!)[] preconditioners, int[] steps, int[] updates, float[] lrs, float[] weight_decays, float beta1, "
      "float beta2, float eps, float floor) -> ()",
      compilable);
  m.def(
      "zero_one_local_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor[] preconditioners, Tensor[] anchors, "
      "Tensor(b!)[] momenta, Tensor(c!)[] updates, float beta, float[] step_sizes) -> ()",
      compilable);
  m.def(
      "zero_one_sync_(Tensor(a!)[] parameters, Tensor(b!)[] anchors, Tensor(c!)[] momenta, Tensor(d!)[] updates, "
      "float[] decays, float[] totals) -> ()",
      compilable);
}

TORCH_LIBRARY_IMPL(octavo, CompositeExplicitAutograd, m) {
  m.impl("packbits", packbits_op);
  m.impl("unpackbits", unpackbits_op);
  m.impl("unpackbits_out", unpackbits_out_op);
  m.impl("adamw_", Moving<adamw_op>::call);
  m.impl("freeze_variance_", freeze_variance_op);
  m.impl("frozen_adamw_", Moving<frozen_adamw_op>::call);
  m.impl("lamb_", Moving<lamb_op>::call);
  m.impl("adam_", Moving<adam_op>::call);
  m.impl("lion_", Moving<lion_op>::call);
  m.impl("require_step", require_step_op);
  m.impl("encode_state_", encode_state_op);
  m.impl("decode_state", decode_state_op);
  m.impl("sign_step_", Moving<sign_step_op>::call);
  m.impl("zero_one_variance_", Moving<zero_one_variance_op>::call);
  m.impl("zero_one_local_", Moving<zero_one_local_op>::call);
  m.impl("zero_one_sync_", Moving<zero_one_sync_op>::call);
}

TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("packbits", packbits_fake);
  m.impl("unpackbits", unpackbits_fake);
  m.impl("unpackbits_out", fake_of(unpackbits_out_op));
  m.impl("adamw_", fake_of(adamw_op));
  m.impl("freeze_variance_", fake_of(freeze_variance_op));
  m.impl("frozen_adamw_", fake_of(frozen_adamw_op));
  m.impl("lamb_", fake_of(lamb_op));
  m.impl("adam_", fake_of(adam_op));
  m.impl("lion_", fake_of(lion_op));
  m.impl("require_step", fake_of(require_step_op));
  m.impl("encode_state_", fake_of(encode_state_op));
  m.impl("decode_state", decode_state_fake);
  m.impl("sign_step_", fake_of(sign_step_op));
  m.impl("zero_one_variance_", fake_of(zero_one_variance_op));
  m.impl("zero_one_local_", fake_of(zero_one_local_op));
  m.impl("zero_one_sync_", fake_of(zero_one_sync_op));
}

}  // namespace

}  // namespace octavo
