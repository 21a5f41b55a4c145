// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/zero_one_adam.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/adamw.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

/// Returns how often an interval has doubled that does so after `first` steps, then after twice as many, and so on.
std::uint64_t doublings(std::uint64_t done, std::uint64_t first) {
  return static_cast<std::uint64_t>(std::bit_width(done / first + 1)) - 1;
}

bool learns_variance(std::uint64_t done, std::uint64_t updates_an_interval) {
  const std::uint64_t doubled = doublings(done, updates_an_interval);
  const std::uint64_t begin = updates_an_interval * ((std::uint64_t{1} << doubled) - 1);
  return (done - begin) % (std::uint64_t{1} << doubled) == 0;
}

std::uint64_t sync_interval(std::uint64_t done, const ZeroOneSchedule& schedule) {
  const std::uint64_t doubled = std::min<std::uint64_t>(done / schedule.steps_an_interval, 62);
  return std::min(std::uint64_t{1} << doubled, schedule.longest_interval);
}

void require_states(at::TensorList states, at::TensorList parameters, const char* where, const char* one,
                    const char* many) {
  require_length(states.size(), parameters.size(), where, many);
  for (std::size_t i = 0; i < parameters.size(); ++i) require_state(states[i], parameters[i], where, one);
}

void require_all_like(at::TensorList tensors, at::TensorList parameters, const char* where, const char* one,
                      const char* many) {
  require_length(tensors.size(), parameters.size(), where, many);
  for (std::size_t i = 0; i < parameters.size(); ++i) require_like(tensors[i], parameters[i], where, one);
}

}  // namespace

ZeroOneKind zero_one_kind(std::uint64_t done, const ZeroOneSchedule& schedule) {
  const auto [variance_steps, updates_an_interval, steps_an_interval, longest_interval] = schedule;
  if (std::min({variance_steps, updates_an_interval, steps_an_interval, longest_interval}) == 0) {
    fail(ErrorCode::invalid_argument, "optim.zero_one_kind", "expected a schedule of at least 1 step each, got ",
         variance_steps, ", ", updates_an_interval, ", ", steps_an_interval, " and ", longest_interval);
  }
  if (done < schedule.variance_steps) {
    return learns_variance(done, schedule.updates_an_interval) ? ZeroOneKind::variance : ZeroOneKind::sync;
  }
  const std::uint64_t since = done - schedule.variance_steps;
  return (since + 1) % sync_interval(since, schedule) == 0 ? ZeroOneKind::sync : ZeroOneKind::local;
}

rules::ZeroOneStep zero_one_step(double beta, double step_size, double gradient_scale) {
  return {.beta = static_cast<float>(beta),
          .gradient_weight = static_cast<float>((1 - beta) / gradient_scale),
          .step_size = static_cast<float>(step_size)};
}

void zero_one_variance_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& momentum, at::Tensor& square,
                        at::Tensor& preconditioner, const ZeroOneVariance& options) {
  constexpr const char* kWhere = "optim.zero_one_variance";
  require_state(momentum, parameter, kWhere, "a momentum");
  require_state(square, parameter, kWhere, "a square");
  require_state(preconditioner, parameter, kWhere, "a preconditioner");
  require_like(gradient, parameter, kWhere, "a gradient");
  require_step(options.step, kWhere, "a step");
  require_step(options.update, kWhere, "an update");
  if (options.update == 1) {
    momentum.zero_();
  } else {
    momentum.div_(preconditioner);
  }
  const AdamWOptions adamw = {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay};
  adamw_(parameter, gradient, momentum, square, adamw, options.step, options.update);
  preconditioner.copy_(square);
  freeze_variance_(preconditioner, options.beta2, options.eps, options.floor, options.update);
  momentum.mul_(preconditioner);
}

void zero_one_local_(at::TensorList parameters, at::TensorList gradients, at::TensorList preconditioners,
                     at::TensorList anchors, at::TensorList momenta, at::TensorList updates, double beta,
                     const std::vector<double>& step_sizes) {
  constexpr const char* kWhere = "optim.zero_one_local";
  require_all_like(gradients, parameters, kWhere, "a gradient", "gradients");
  require_states(preconditioners, parameters, kWhere, "a preconditioner", "preconditioners");
  require_all_like(anchors, parameters, kWhere, "an anchor", "anchors");
  require_states(momenta, parameters, kWhere, "a momentum", "momenta");
  require_states(updates, parameters, kWhere, "an update", "updates");
  require_length(step_sizes.size(), parameters.size(), kWhere, "step sizes");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const rules::ZeroOneStep step = zero_one_step(beta, step_sizes[i]);
    const at::Tensor order = order_of(parameters[i]);
    Flat p(parameters[i], order), g(gradients[i], order), c(preconditioners[i], order), a(anchors[i], order);
    Flat m(momenta[i], order), u(updates[i], order);
    float *pd = p.data(), *gd = g.data(), *cd = c.data(), *ad = a.data(), *md = m.data(), *ud = u.data();
    for_elements(order, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
      scope.kernels().zero_one_local(scope.queue(), step, size, gd + first, cd + first, ad + first, pd + first,
                                     md + first, ud + first);
    });
    for (Flat* flat : {&p, &m, &u}) flat->write_back();
  }
}

void zero_one_sync_(at::TensorList parameters, at::TensorList anchors, at::TensorList momenta, at::TensorList updates,
                    const std::vector<double>& decays, const std::vector<double>& totals) {
  constexpr const char* kWhere = "optim.zero_one_sync";
  if (!anchors.empty()) require_all_like(anchors, parameters, kWhere, "an anchor", "anchors");
  require_states(momenta, parameters, kWhere, "a momentum", "momenta");
  require_states(updates, parameters, kWhere, "an update", "updates");
  require_length(decays.size(), parameters.size(), kWhere, "decays");
  require_length(totals.size(), parameters.size(), kWhere, "totals");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto decay = static_cast<float>(decays[i]);
    const auto share = static_cast<float>(totals[i] > 0 ? 1 / totals[i] : 0);
    const at::Tensor order = order_of(parameters[i]);
    Flat p(parameters[i], order), m(momenta[i], order), u(updates[i], order);
    const at::Tensor kept = totals[i] > 0 ? at::Tensor() : momenta[i].clone();  // no step size: the updates say nothing
    std::optional<Flat> a;
    if (!anchors.empty()) a.emplace(anchors[i], order);
    float *pd = p.data(), *md = m.data(), *ud = u.data(), *ad = a ? a->data() : pd;
    for_elements(order, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
      scope.kernels().zero_one_sync(scope.queue(), decay, share, size, ad + first, pd + first, md + first, ud + first);
    });
    for (Flat* flat : {&p, &m, &u}) flat->write_back();
    if (a) a->write_back();
    if (kept.defined()) momenta[i].copy_(kept);
  }
}

void zero_one_send(c10::Device device, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                   const float* preconditioner, const float* momentum, const float* update) {
  for_elements(device, count, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().zero_one_send(scope.queue(), step, size, values + first, preconditioner + first, momentum + first,
                                  update + first);
  });
}

}  // namespace octavo
