// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/lamb.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"
#include "octavo/optim/flat.h"
#include "octavo/rules/gradient_power.h"

namespace octavo {

namespace {

std::uint64_t chunks_of(std::uint64_t count) { return divide_up(count, rules::kPowerChunk); }

/// A parameter and its state as the kernels see them.
struct Lamb {
  at::Tensor order;
  Flat parameter, mean, square;
  rules::LambStep step;
  Lamb(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const rules::LambStep& rule, CopyRoom& room)
      : order(order_of(p)), parameter(p, order, &room), mean(m, order, &room), square(v, order, &room), step(rule) {}
  std::uint64_t count() const { return static_cast<std::uint64_t>(order.numel()); }
  std::uint64_t chunks() const { return chunks_of(count()); }
};

rules::LambStep rule_of(const LambOptions& options, std::int64_t step) {
  return {.beta1_complement = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .beta2_complement = static_cast<float>(1 - options.beta2),
          .bias1 = static_cast<float>(1 - std::pow(options.beta1, step)),
          .sqrt_bias2 = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, step))),
          .eps = static_cast<float>(options.eps),
          .weight_decay = static_cast<float>(options.weight_decay)};
}

/// Writes the sum of squares of every chunk.
void sum_squares(c10::Device device, std::uint64_t count, const float* values, float* sums) {
  const LaunchScope scope(device);
  const std::uint64_t chunks = chunks_of(count);
  constexpr auto kGrainChunks = kGrainElements / static_cast<std::int64_t>(rules::kPowerChunk);
  for_parts(device, static_cast<std::int64_t>(chunks), kGrainChunks, [&](std::int64_t from, std::int64_t to) {
    const std::uint64_t first = static_cast<std::uint64_t>(from) * rules::kPowerChunk;
    const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * rules::kPowerChunk, count);
    scope.kernels().chunk_powers(scope.queue(), values + first, last - first, rules::kPowerChunk, sums + from);
  });
}

void find_direction(Lamb& lamb, float* direction) {
  float *pd = lamb.parameter.data(), *md = lamb.mean.data(), *vd = lamb.square.data();
  for_elements(lamb.parameter.values(), [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().lamb_direction(scope.queue(), lamb.step, size, pd + first, md + first, vd + first,
                                   direction + first);
  });
}

void update_moments(Lamb& lamb, const at::Tensor& gradient, CopyRoom& room) {
  Flat g(gradient, lamb.order, &room);
  float *gd = g.data(), *md = lamb.mean.data(), *vd = lamb.square.data();
  for_elements(lamb.parameter.values(), [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().lamb_moments(scope.queue(), lamb.step, size, gd + first, md + first, vd + first);
  });
}

void apply(Lamb& lamb, const float* direction, double step_size) {
  float* pd = lamb.parameter.data();
  for_elements(lamb.parameter.values(), [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().frozen_adamw(scope.queue(), 1.0F, static_cast<float>(step_size), size, direction + first,
                                 pd + first);
  });
}

double norm_of(std::span<const float> sums) {
  double total = 0;
  for (const float sum : sums) total += static_cast<double>(sum);
  return std::sqrt(total);
}

void require_valid(at::TensorList parameters, at::TensorList gradients, at::TensorList means, at::TensorList squares,
                   at::IntArrayRef steps, const at::Tensor& coefficients, const LambOptions& options) {
  constexpr const char* kWhere = "optim.lamb";
  require_length(gradients.size(), parameters.size(), kWhere, "gradients");
  require_length(means.size(), parameters.size(), kWhere, "means");
  require_length(squares.size(), parameters.size(), kWhere, "squares");
  require_length(steps.size(), parameters.size(), kWhere, "steps");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    require_like(gradients[i], parameters[i], kWhere, "a gradient");
    require_state(means[i], parameters[i], kWhere, "a mean");
    require_state(squares[i], parameters[i], kWhere, "a square");
    require_step(steps[i], kWhere, "a step");
    if (parameters[i].device() != parameters[0].device()) {
      fail(ErrorCode::invalid_argument, kWhere, "expected all parameters on ", parameters[0].device().str(), ", got ",
           parameters[i].device().str(), ": make a call for each device");
    }
  }
  const auto number = static_cast<std::int64_t>(parameters.size());
  require_rates(options.lr, options.beta1, options.beta2, options.weight_decay, kWhere);
  require_not_negative(options.eps, kWhere, "eps");
  if (!(options.least_coefficient <= options.greatest_coefficient)) {
    fail(ErrorCode::invalid_argument, kWhere, "expected a least coefficient up to the greatest, got ",
         options.least_coefficient, " and ", options.greatest_coefficient);
  }
  if (!coefficients.defined()) {
    fail(ErrorCode::invalid_argument, kWhere, "expected coefficients for ", number,
         " parameters, got an undefined tensor");
  }
  if (coefficients.scalar_type() != at::kDouble || coefficients.numel() != number || !coefficients.is_cpu() ||
      !coefficients.is_contiguous()) {
    fail(ErrorCode::invalid_argument, kWhere, "expected coefficients as contiguous float64 of ", number,
         " elements on the CPU, got ", toString(coefficients.scalar_type()), coefficients.sizes(), " on ",
         coefficients.device().str());
  }
}

}  // namespace

void lamb_(at::TensorList parameters, at::TensorList gradients, at::TensorList means, at::TensorList squares,
           at::IntArrayRef steps, at::Tensor& coefficients, const LambOptions& options) {
  require_valid(parameters, gradients, means, squares, steps, coefficients, options);
  if (parameters.empty()) return;

  const c10::Device device = parameters[0].device();
  std::uint64_t chunks = 0, largest = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto count = static_cast<std::uint64_t>(parameter.numel());
    chunks += chunks_of(count);
    largest = std::max(largest, count);
  }
  CopyRoom room;
  reserve_for_flats(room, parameters, {parameters, gradients, means, squares});
  at::Tensor direction_buffer, sums_buffer;
  auto* direction = reserve_on_device<float>(direction_buffer, largest, device);
  auto* sums = reserve_on_host<float>(sums_buffer, 2 * chunks, device);
  const WaitAtEnd buffers_are_free(device);
  const auto lamb_of = [&](std::size_t i) {
    room.clear();
    return Lamb(parameters[i], means[i], squares[i], rule_of(options, steps[i]), room);
  };

  float* next = sums;  // for each tensor the sums of the parameter, then of its direction
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Lamb lamb = lamb_of(i);
    update_moments(lamb, gradients[i], room);
    find_direction(lamb, direction);
    sum_squares(device, lamb.count(), lamb.parameter.data(), next);
    sum_squares(device, lamb.count(), direction, next + lamb.chunks());
    next += 2 * lamb.chunks();
    lamb.mean.write_back();
    lamb.square.write_back();
  }
  wait_for_current_stream(device);

  next = sums;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Lamb lamb = lamb_of(i);
    const std::uint64_t own = lamb.chunks();
    const double size = norm_of({next, own}), length = norm_of({next + own, own});
    next += 2 * own;
    double& coefficient = coefficients.mutable_data_ptr<double>()[i];
    coefficient = size > 0 && length > 0
                      ? std::clamp(size / length, options.least_coefficient, options.greatest_coefficient)
                      : 1.0;
    find_direction(lamb, direction);
    apply(lamb, direction, options.lr * coefficient);
    lamb.parameter.write_back();
  }
}

}  // namespace octavo
