// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

#include <vector>

#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/operators.h"

// What torch's modules ask of every accelerator and the CPU does not have, or has in another form.
namespace octavo::sycl_device {

namespace {

// ---- dropout

/// Returns the output and the mask of what was kept. Written by hand, because the CPU's dropout draws from the CPU's
/// default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const auto mask_like = input.options().dtype(at::kBool);
  if (!train.value_or(true) || input.numel() == 0) return {input.clone(), at::ones(input.sizes(), mask_like)};
  const double kept = 1 - p;
  const at::Tensor mask =
      at::empty(input.sizes(), mask_like).bernoulli_(kept, default_generator(input.device().index()));
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

// ---- LSTM and GRU

// torch asks every accelerator for fused cells, which the CPU does not have. Gates are given before their activation,
// [batch, gates * hidden]. A workspace keeps what backward needs.

using Optional = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const Optional& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

at::Tensor sigmoid_slope(const at::Tensor& y) { return (1 - y) * y; }
at::Tensor tanh_slope(const at::Tensor& y) { return 1 - y * y; }
at::Tensor bias_gradient(const at::Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0) : at::Tensor(); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const Optional& input_bias,
                                                         const Optional& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid();
  const at::Tensor cell = gates[2].tanh(), out = gates[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const Optional& grad_hy, const Optional& grad_cy,
                                                                  const at::Tensor& cx, const at::Tensor& cy,
                                                                  const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy && grad_hy->defined(), has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor bent = cy.tanh(), dhy = has_hy ? *grad_hy : at::zeros_like(cy);
  at::Tensor dcy = dhy * out * tanh_slope(bent);
  if (has_cy) dcy = dcy + *grad_cy;
  const at::Tensor dgates = at::cat({dcy * cell * sigmoid_slope(in), dcy * cx * sigmoid_slope(forget),
                                     dcy * in * tanh_slope(cell), dhy * bent * sigmoid_slope(out)},
                                    1);
  return {dgates, dcy * forget, bias_gradient(dgates, has_bias)};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const Optional& input_bias,
                                            const Optional& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (input[0] + hidden[0]).sigmoid(), keep = (input[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + keep * (hx - fresh), at::cat({reset, keep, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const at::Tensor &reset = kept[0], &keep = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
  const at::Tensor dkeep = grad_hy * (hx - fresh) * sigmoid_slope(keep);
  const at::Tensor dfresh = grad_hy * (1 - keep) * tanh_slope(fresh);
  const at::Tensor dreset = dfresh * hidden * sigmoid_slope(reset);
  const at::Tensor dinput = at::cat({dreset, dkeep, dfresh}, 1), dhidden = at::cat({dreset, dkeep, dfresh * reset}, 1);
  return {dinput, dhidden, grad_hy * keep, bias_gradient(dinput, has_bias), bias_gradient(dhidden, has_bias)};
}

// ---- autocast

/// Registers autocast as on torch's own accelerators: which operators run in bf16 or fp16, and which in fp32.
void register_autocast() {
  using namespace at;  // torch's macros name its types without a namespace
  static auto* others =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFallthrough());

  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *library;  // the name in torch's macros
#define OCTAVO_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(OCTAVO_LOWER_PRECISION)
#undef OCTAVO_LOWER_PRECISION
#define OCTAVO_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(OCTAVO_FP32)
#undef OCTAVO_FP32
#define OCTAVO_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(OCTAVO_FP32_SET_OPT_DTYPE)
#undef OCTAVO_FP32_SET_OPT_DTYPE
  KERNEL_PRIVATEUSEONE(binary_cross_entropy, fp32)  // as on the CPU; CUDA refuses it
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define OCTAVO_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(OCTAVO_PROMOTE)
#undef OCTAVO_PROMOTE
}

}  // namespace

void register_nn_operators() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("native_dropout", native_dropout);
  library->impl("_thnn_fused_lstm_cell", lstm_cell);
  library->impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library->impl("_thnn_fused_gru_cell", gru_cell);
  library->impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
  // scaled_dot_product_attention chooses as on the CPU, between its flash kernel and plain operators
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&at::native::_fused_sdp_choice_cpp);
  register_autocast();
}

}  // namespace octavo::sycl_device
