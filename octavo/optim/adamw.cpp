// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/round_up.h"
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
  require_not_negative(options.eps, where, "eps");
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
  constexpr const char* kWhere = "optim.adamw";
  require_state(mean, parameter, kWhere, "mean");
  require_state(square, parameter, kWhere, "square");
  require_like(gradient, parameter, kWhere, "gradient");
  require_step(step, kWhere, "a step");
  require_valid(options, kWhere);
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), g(gradient, order), m(mean, order), v(square, order);
  adamw_flat(p, g, m, v, options, step, /*square_step=*/step);
  p.write_back();
  m.write_back();
  v.write_back();
}

void adamw_flat(Flat& parameter, Flat& gradient, Flat& mean, Flat& square, const AdamWOptions& options,
                std::int64_t step, std::int64_t square_step) {
  const rules::AdamWStep rule = rule_of(options, step, square_step);
  float *p = parameter.data(), *g = gradient.data(), *m = mean.data(), *v = square.data();
  for_elements(parameter.values(), [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    const StepOperands operands = {
        .parameter = p + first, .gradient = g + first, .mean = {m + first}, .square = {v + first}};
    scope.kernels().adamw(scope.queue(), rule, size, operands);
  });
}

void freeze_variance_(at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
  constexpr const char* kWhere = "optim.freeze_variance";
  require_state(square, square, kWhere, "a square");
  require_step(step, kWhere, "a step");
  FreezeRoom room;
  room.reserve(square);
  room.freeze(square, beta2, eps, floor, step);
}

void FreezeRoom::reserve(const at::Tensor& square) {
  const auto grow = [](at::Tensor& room, std::int64_t size, const at::TensorOptions& options) {
    if (!room.defined() || room.numel() < size) room = at::empty({size}, options);
  };
  const at::TensorOptions options = square.options();
  const std::int64_t blocks = divide_up(square.numel(), kFloorBlock);
  grow(rows_, square.is_contiguous() ? 0 : square.numel(), options);
  grow(last_, kFloorBlock, options);
  grow(means_, blocks, options);
  grow(is_positive_, blocks, options.dtype(at::kBool));
  if (!mean_.defined()) mean_ = at::empty({}, options);
  if (!square.is_cpu()) grow(host_means_, blocks, options.device(at::kCPU));
}

void FreezeRoom::freeze(const at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
  if (square.numel() == 0) return;
  if (square.is_contiguous()) return freeze_rows(square.view(-1), beta2, eps, floor, step);
  const at::Tensor rows = rows_.narrow(0, 0, square.numel()), in_shape = rows.view(square.sizes());
  in_shape.copy_(square);
  freeze_rows(rows, beta2, eps, floor, step);
  square.copy_(in_shape);
}

/// Returns the mean of `count` values from the means of their blocks, summed up in order: a reduction by torch would
/// depend on the number of threads.
double FreezeRoom::mean_of_blocks(const at::Tensor& means, std::int64_t count) {
  const at::Tensor host = means.is_cpu() ? means : host_means_.narrow(0, 0, means.numel()).copy_(means);
  const float* const values = host.const_data_ptr<float>();
  double sum = 0;
  for (std::int64_t i = 0; i < means.numel(); ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(std::min(kFloorBlock, count - i * kFloorBlock));
  }
  return sum / static_cast<double>(count);
}

void FreezeRoom::freeze_rows(const at::Tensor& rows, double beta2, double eps, double floor, std::int64_t step) {
  const std::int64_t count = rows.numel(), left = count % kFloorBlock, blocks = count / kFloorBlock;
  rows.div_(1 - std::pow(beta2, step)).sqrt_();
  at::Tensor whole = rows.narrow(0, 0, count - left).view({blocks, kFloorBlock});
  at::Tensor last = rows.narrow(0, count - left, left), means_of_whole = means_.narrow(0, 0, blocks);
  at::sum_out(means_of_whole, whole, 1).div_(static_cast<double>(kFloorBlock));
  if (left > 0) {
    last_.zero_().narrow(0, 0, left).copy_(last);
    at::Tensor mean_of_last = means_[blocks];
    at::sum_out(mean_of_last, last_, 0).div_(static_cast<double>(left));
  }
  at::Tensor means = means_.narrow(0, 0, blocks + (left > 0)), is_positive = is_positive_.narrow(0, 0, means.numel());
  mean_.fill_(mean_of_blocks(means, count));
  at::gt_out(is_positive, means, 0);
  at::where_out(means, is_positive, means, mean_);
  means.mul_(floor);
  at::maximum_out(whole, whole, means_of_whole.unsqueeze(1));
  if (left > 0) at::maximum_out(last, last, means_[blocks]);
  rows.add_(eps).reciprocal_();
}

void frozen_adamw_(at::Tensor& parameter, const at::Tensor& update, at::Tensor& mean, double step_size, double decay) {
  constexpr const char* kWhere = "optim.frozen_adamw";
  require_state(mean, parameter, kWhere, "mean");
  require_like(update, parameter, kWhere, "update");
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), m(mean, order);
  m.values().copy_(update);
  float *pd = p.data(), *md = m.data();
  for_elements(parameter, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().frozen_adamw(scope.queue(), static_cast<float>(1 - decay), static_cast<float>(step_size), size,
                                 md + first, pd + first);
  });
  p.write_back();
  m.write_back();
}

}  // namespace octavo
