// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "octavo/device/dispatch.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

constexpr std::int64_t kFloorBlock = 256;

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

void require_valid(const AdamWOptions& options, const char* where) {
  require_rates(options.lr, options.beta1, options.beta2, options.weight_decay, where);
  require_finite(options.eps, where, "eps");
}

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
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), g(gradient, order), m(mean, order), v(square, order);
  adamw_flat(parameter.device(), p, g, m, v, options, step, square_step);
  p.write_back();
  m.write_back();
  v.write_back();
}

void adamw_flat(c10::Device device, Flat& parameter, Flat& gradient, Flat& mean, Flat& square,
                const AdamWOptions& options, std::int64_t step, std::int64_t square_step) {
  const rules::AdamWStep rule = rule_of(options, step, square_step);
  float *p = parameter.data(), *g = gradient.data(), *m = mean.data(), *v = square.data();
  const auto count = static_cast<std::uint64_t>(parameter.values().numel());
  for_elements(device, count, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    const StepOperands operands = {
        .parameter = p + first, .gradient = g + first, .mean = {m + first}, .square = {v + first}};
    scope.kernels().adamw(scope.queue(), rule, size, operands);
  });
}

void freeze_variance_(at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
  constexpr const char* kWhere = "optim.freeze_variance";
  require_state(square, square, kWhere, "a square");
  require_step(step, kWhere, "a step");
  FreezeRoom(square).freeze(square, beta2, eps, floor, step);
}

FreezeRoom::FreezeRoom(const at::Tensor& square)
    : rows_(square.is_contiguous() ? square.view(-1) : at::empty({square.numel()}, square.options())),
      last_(at::empty({kFloorBlock}, square.options())),
      means_(at::empty({(square.numel() + kFloorBlock - 1) / kFloorBlock}, square.options())),
      is_positive_(at::empty(means_.sizes(), square.options().dtype(at::kBool))),
      mean_(at::empty({}, square.options())) {}

void FreezeRoom::freeze(const at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
  const std::int64_t count = rows_.numel(), left = count % kFloorBlock, blocks = count / kFloorBlock;
  if (count == 0) return;
  const at::Tensor in_rows = rows_.view(square.sizes());
  in_rows.copy_(square);
  rows_.div_(1 - std::pow(beta2, step)).sqrt_();
  at::mean_out(mean_, rows_, at::IntArrayRef{0});
  at::Tensor whole = rows_.narrow(0, 0, count - left).view({blocks, kFloorBlock});
  at::Tensor last = rows_.narrow(0, count - left, left), means_of_whole = means_.narrow(0, 0, blocks);
  at::sum_out(means_of_whole, whole, 1).div_(static_cast<double>(kFloorBlock));
  if (left > 0) {
    last_.zero_().narrow(0, 0, left).copy_(last);
    at::Tensor mean_of_last = means_[blocks];
    at::sum_out(mean_of_last, last_, 0).div_(static_cast<double>(left));
  }
  at::gt_out(is_positive_, means_, 0);
  at::where_out(means_, is_positive_, means_, mean_);
  means_.mul_(floor);
  at::maximum_out(whole, whole, means_of_whole.unsqueeze(1));
  if (left > 0) at::maximum_out(last, last, means_[blocks]);
  rows_.add_(eps).reciprocal_();
  square.copy_(in_rows);
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
