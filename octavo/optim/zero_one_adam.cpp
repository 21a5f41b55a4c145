// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/zero_one_adam.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

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

void zero_one_variance_(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta,
                        at::TensorList squares, at::TensorList preconditioners, at::IntArrayRef steps,
                        at::IntArrayRef updates, at::ArrayRef<double> lrs, at::ArrayRef<double> weight_decays,
                        const AdamWOptions& options, double floor) {
  constexpr const char* kWhere = "optim.zero_one_variance";
  require_states(momenta, parameters, kWhere, "a momentum", "momenta");
  require_states(squares, parameters, kWhere, "a square", "squares");
  require_states(preconditioners, parameters, kWhere, "a preconditioner", "preconditioners");
  require_all_like(gradients, parameters, kWhere, "a gradient", "gradients");
  require_length(steps.size(), parameters.size(), kWhere, "steps");
  require_length(updates.size(), parameters.size(), kWhere, "updates");
  for (const std::int64_t step : steps) require_step(step, kWhere, "a step");
  for (const std::int64_t update : updates) require_step(update, kWhere, "an update");
  require_length(lrs.size(), parameters.size(), kWhere, "rates");
  require_length(weight_decays.size(), parameters.size(), kWhere, "weight decays");
  const auto options_of = [&](std::size_t i) {
    AdamWOptions own = options;
    own.lr = lrs[i];
    own.weight_decay = weight_decays[i];
    return own;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) require_valid(options_of(i), kWhere);
  std::unordered_map<c10::Device, FreezeRoom> freezing;
  for (const at::Tensor& preconditioner : preconditioners) freezing[preconditioner.device()].reserve(preconditioner);
  const auto step = [&](std::size_t i, const auto& flat_of) {  // it allocates nothing
    Flat p = flat_of(parameters), g = flat_of(gradients), m = flat_of(momenta), v = flat_of(squares);
    if (updates[i] == 1) {
      m.values().zero_();
    } else {
      m.values().div_(flat_of(preconditioners).values());
    }
    adamw_flat(p, g, m, v, options_of(i), steps[i], updates[i]);
    for (Flat* flat : {&p, &m, &v}) flat->write_back();
    preconditioners[i].copy_(squares[i]);
    freezing.at(parameters[i].device()).freeze(preconditioners[i], options.beta2, options.eps, floor, updates[i]);
    momenta[i].mul_(preconditioners[i]);
  };
  for_each_flat(parameters, {parameters, gradients, momenta, squares, preconditioners}, step);
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
  const auto step = [&](std::size_t i, const auto& flat_of) {
    const rules::ZeroOneStep rule = zero_one_step(beta, step_sizes[i]);
    Flat p = flat_of(parameters), g = flat_of(gradients), c = flat_of(preconditioners), a = flat_of(anchors);
    Flat m = flat_of(momenta), u = flat_of(updates);
    float *pd = p.data(), *gd = g.data(), *cd = c.data(), *ad = a.data(), *md = m.data(), *ud = u.data();
    for_elements(parameters[i], [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
      scope.kernels().zero_one_local(scope.queue(), rule, size, gd + first, cd + first, ad + first, pd + first,
                                     md + first, ud + first);
    });
    for (Flat* flat : {&p, &m, &u}) flat->write_back();
  };
  for_each_flat(parameters, {parameters, gradients, preconditioners, anchors, momenta, updates}, step);
}

void zero_one_sync_(at::TensorList parameters, at::TensorList anchors, at::TensorList momenta, at::TensorList updates,
                    const std::vector<double>& decays, const std::vector<double>& totals) {
  constexpr const char* kWhere = "optim.zero_one_sync";
  require_all_like(anchors, parameters, kWhere, "an anchor", "anchors");
  for (const at::Tensor& anchor : anchors) require_writable(anchor, kWhere, "an anchor");
  require_states(momenta, parameters, kWhere, "a momentum", "momenta");
  require_states(updates, parameters, kWhere, "an update", "updates");
  require_length(decays.size(), parameters.size(), kWhere, "decays");
  require_length(totals.size(), parameters.size(), kWhere, "totals");
  std::vector<at::Tensor> kept(parameters.size());  // without a step size the updates say nothing of the momentum
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (totals[i] <= 0) kept[i] = momenta[i].clone();
  }
  const auto step = [&](std::size_t i, const auto& flat_of) {
    const auto decay = static_cast<float>(decays[i]);
    const auto share = static_cast<float>(totals[i] > 0 ? 1 / totals[i] : 0);
    Flat p = flat_of(parameters), m = flat_of(momenta), u = flat_of(updates);
    std::optional<Flat> a;
    if (!anchors[i].is_same(parameters[i])) a = flat_of(anchors);
    float *pd = p.data(), *md = m.data(), *ud = u.data(), *ad = a ? a->data() : pd;
    for_elements(parameters[i], [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
      scope.kernels().zero_one_sync(scope.queue(), decay, share, size, ad + first, pd + first, md + first, ud + first);
    });
    for (Flat* flat : {&p, &m, &u}) flat->write_back();
    if (a) a->write_back();
    if (kept[i].defined()) momenta[i].copy_(kept[i]);
  };
  for_each_flat(parameters, {parameters, anchors, momenta, updates}, step);
}

void zero_one_send(c10::Device device, const rules::ZeroOneStep& step, std::uint64_t count, float* values,
                   const float* preconditioner, const float* momentum, const float* update) {
  for_elements(device, count, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().zero_one_send(scope.queue(), step, size, values + first, preconditioner + first, momentum + first,
                                  update + first);
  });
}

}  // namespace octavo
