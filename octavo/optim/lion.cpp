// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/lion.h"

#include "octavo/device/dispatch.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

float kept_by(double lr, double weight_decay) { return static_cast<float>(1 - lr * weight_decay); }

}  // namespace

rules::MomentumMix momentum_mix(double update_beta, double kept_beta, double gradient_scale) {
  return {.update_beta = static_cast<float>(update_beta),
          .update_complement = static_cast<float>((1 - update_beta) / gradient_scale),
          .kept_beta = static_cast<float>(kept_beta),
          .kept_complement = static_cast<float>((1 - kept_beta) / gradient_scale)};
}

void lion_(const StepTensors& tensors, const LionOptions& options) {
  constexpr const char* kWhere = "optim.lion";
  require_valid(tensors, /*has_square=*/false, kWhere);
  require_rates(options.lr, options.beta1, options.beta2, options.weight_decay, kWhere);
  const rules::LionStep rule = {.decay = kept_by(options.lr, options.weight_decay),
                                .step_size = static_cast<float>(options.lr),
                                .mix = momentum_mix(options.beta1, options.beta2)};
  make_step(tensors, [&](const LaunchScope& scope, std::size_t, std::uint64_t count, const StepOperands& operands) {
    scope.kernels().lion(scope.queue(), rule, count, operands);
  });
}

void sign_step_(at::TensorList parameters, at::TensorList updates, double lr, double weight_decay) {
  constexpr const char* kWhere = "optim.sign_step";
  require_length(updates.size(), parameters.size(), kWhere, "updates");
  for (std::size_t i = 0; i < parameters.size(); ++i) require_like(updates[i], parameters[i], kWhere, "an update");
  require_finite(lr, kWhere, "lr");
  require_not_negative(weight_decay, kWhere, "weight_decay");
  const float decay = kept_by(lr, weight_decay), step_size = static_cast<float>(lr);
  for_each_flat(parameters, {parameters, updates}, [&](std::size_t i, const auto& flat_of) {
    Flat p = flat_of(parameters), u = flat_of(updates);
    float *pd = p.data(), *ud = u.data();
    for_elements(parameters[i], [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
      scope.kernels().sign_step(scope.queue(), decay, step_size, size, ud + first, pd + first);
    });
    p.write_back();
  });
}

void mix_momentum(c10::Device device, const rules::MomentumMix& mix, std::uint64_t count, float* values,
                  const float* momentum, float* next) {
  for_elements(device, count, [&](const LaunchScope& scope, std::uint64_t first, std::uint64_t size) {
    scope.kernels().mix_momentum(scope.queue(), mix, size, values + first, momentum + first, next + first);
  });
}

}  // namespace octavo
