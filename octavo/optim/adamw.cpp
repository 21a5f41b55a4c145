// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "octavo/device/dispatch.h"
#include "octavo/optim/flat.h"

namespace octavo {

namespace {

constexpr std::int64_t kFloorBlock = 256;

}  // namespace

void adamw_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
            const AdamWOptions& options, std::int64_t step) {
  adamw_(parameter, gradient, mean, square, options, step, step);
}

void adamw_(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& mean, at::Tensor& square,
            const AdamWOptions& options, std::int64_t step, std::int64_t square_step) {
  constexpr const char* kWhere = "optim.adamw";
  require_state(mean, parameter, kWhere, "mean");
  require_state(square, parameter, kWhere, "square");
  require_shape(gradient, parameter, kWhere, "gradient");
  const double bias1 = 1 - std::pow(options.beta1, step), bias2 = 1 - std::pow(options.beta2, square_step);
  const rules::AdamWStep rule = {
      .decay = static_cast<float>(1 - options.lr * options.weight_decay),
      .step_size = static_cast<float>(options.lr / bias1),
      .beta1_complement = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .beta2_complement = static_cast<float>(1 - options.beta2),
      .sqrt_bias2 = static_cast<float>(std::sqrt(bias2)),
      .eps = static_cast<float>(options.eps),
  };
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), g(gradient, order), m(mean, order), v(square, order);
  float *pd = p.data(), *gd = g.data(), *md = m.data(), *vd = v.data();
  const LaunchScope scope(parameter.device());
  for_parts(parameter.device(), parameter.numel(), kGrainElements, [&](std::int64_t first, std::int64_t last) {
    scope.kernels().adamw(scope.queue(), rule, static_cast<std::uint64_t>(last - first), gd + first, pd + first,
                          md + first, vd + first);
  });
  p.write_back();
  m.write_back();
  v.write_back();
}

void freeze_variance_(at::Tensor& square, double beta2, double eps, double floor, std::int64_t step) {
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
  require_shape(update, parameter, kWhere, "update");
  mean.copy_(update);
  const at::Tensor order = order_of(parameter);
  Flat p(parameter, order), m(mean, order);
  float *pd = p.data(), *md = m.data();
  const LaunchScope scope(parameter.device());
  for_parts(parameter.device(), parameter.numel(), kGrainElements, [&](std::int64_t first, std::int64_t last) {
    scope.kernels().frozen_adamw(scope.queue(), static_cast<float>(1 - decay), static_cast<float>(step_size),
                                 static_cast<std::uint64_t>(last - first), md + first, pd + first);
  });
  p.write_back();
}

}  // namespace octavo
