// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "octavo/device/dispatch.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

constexpr std::int64_t kFloorBlock = 256;

void require_valid(const AdamWOptions& options, const char* where) {
  require_rates(options.lr, options.beta1, options.beta2, options.weight_decay, where);
  require_finite(options.eps, where, "eps");
}

rules::AdamWStep rule_of(const AdamWOptions& options, std::int64_t step, std::int64_t square_step) {
  const double bias1 = 1 - std::pow(options.beta1, step), bias2 = 1 - std::pow(options.beta2, square_step);
  return {.decay = static_cast<float>(1 - options.lr * options.weight_decay),
          .step_size = static_cast<float>(options.lr / bias1),
          .beta1_complement = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .beta2_complement = static_cast<float>(1 - options.beta2),
          .root_scale = static_cast<float>(1 / std::sqrt(bias2)),
          .eps = static_cast<float>(options.eps)};
}

/// Returns the rule of Adam itself, whose weight decay is added to gradients.
rules::AdamWStep coupled(const AdamWOptions& options, std::int64_t step) {
  rules::AdamWStep rule = rule_of(options, step, step);
  rule.decay = 1.0F;
  rule.coupled_decay = static_cast<float>(options.weight_decay);
  return rule;
}

}  // namespace

void adam_(const StepTensors& tensors, at::IntArrayRef steps, const AdamWOptions& options, bool is_decay_decoupled) {
  constexpr const char* kWhere = "optim.adam";
  require_valid(tensors, /*has_square=*/true, kWhere);
  require_length(steps.size(), tensors.parameters.size(), kWhere, "steps");
  require_valid(options, kWhere);
  std::vector<rules::AdamWStep> rules;
  for (const std::int64_t step : steps) {
    require_step(step, kWhere, "a step");
    rules.push_back(is_decay_decoupled ? rule_of(options, step, step) : coupled(options, step));
  }
  make_step(tensors, [&](const LaunchScope& scope, std::size_t i, std::uint64_t count, const StepOperands& operands) {
    scope.kernels().adamw(scope.queue(), rules[i], count, operands);
  });
}

void adamw_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
            const AdamWOptions& options, std::int64_t step) {
  adamw_(parameter, gradient, mean, square, options, step, step);
}

void adamw_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
            const AdamWOptions& options, std::int64_t step, std::int64_t square_step) {
  constexpr const char* kWhere = "optim.adamw";
  require_state(mean, parameter, kWhere, "mean");
  require_state(square, parameter, kWhere, "square");
  require_like(gradient, parameter, kWhere, "gradient");
  require_step(step, kWhere, "a step");
  require_step(square_step, kWhere, "a step of the square");
  require_valid(options, kWhere);
  const rules::AdamWStep rule = rule_of(options, step, square_step);
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), g(gradient, order), m(mean, order), v(square, order);
  float *pd = p.data(), *gd = g.data(), *md = m.data(), *vd = v.data();
  for_elements(parameter, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    const StepOperands operands = {
        .parameter = pd + first, .gradient = gd + first, .mean = {md + first}, .square = {vd + first}};
    scope.kernels().adamw(scope.queue(), rule, size, operands);
  });
  p.write_back();
  m.write_back();
  v.write_back();
}

void freeze_variance_(at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
  constexpr const char* kWhere = "optim.freeze_variance";
  require_state(square, square, kWhere, "a square");
  require_step(step, kWhere, "a step");
  if (square.numel() == 0) return;
  const at::Tensor root = (square / (1 - std::pow(beta2, step))).sqrt_();
  const at::Tensor flat = root.flatten();
  const std::int64_t padded = (flat.numel() + kFloorBlock - 1) / kFloorBlock * kFloorBlock;
  const at::Tensor blocks = at::constant_pad_nd(flat, {0, padded - flat.numel()}).view({-1, kFloorBlock});
  at::Tensor sizes = at::full({blocks.size(0), 1}, static_cast<double>(kFloorBlock), flat.options());
  sizes[-1].fill_(static_cast<double>(flat.numel() - (blocks.size(0) - 1) * kFloorBlock));
  at::Tensor means = blocks.sum(1, /*keepdim=*/true) / sizes;
  means = at::where(means > 0, means, flat.mean());
  const at::Tensor bound = (means * floor).expand_as(blocks).reshape(-1).narrow(0, 0, flat.numel());
  square.copy_(at::maximum(flat, bound).add_(eps).reciprocal_().view_as(root));
}

void frozen_adamw_(at::Tensor& parameter, const at::Tensor& update, at::Tensor& mean, double step_size, double decay) {
  constexpr const char* kWhere = "optim.frozen_adamw";
  require_state(mean, parameter, kWhere, "mean");
  require_like(update, parameter, kWhere, "update");
  mean.copy_(update);
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), m(mean, order);
  float *pd = p.data(), *md = m.data();
  for_elements(parameter, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().frozen_adamw(scope.queue(), static_cast<float>(1 - decay), static_cast<float>(step_size), size,
                                 md + first, pd + first);
  });
  p.write_back();
}

}  // namespace octavo
