// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/measured_loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "octavo/device/dispatch.h"

namespace octavo {

namespace {

std::optional<float> if_finite(double figure) {
  return std::isfinite(figure) ? std::optional(static_cast<float>(figure)) : std::nullopt;
}

MeasuredLoss loss_of(const at::Tensor& result, const at::Tensor& mean) {
  const double of_mean = mean.norm().item<double>(), of_result = result.norm().item<double>();
  const double error = (result - mean).norm().item<double>();
  const double product = mean.dot(result).item<double>();
  return {if_finite(error / of_mean), if_finite(product / (of_mean * of_result))};
}

}  // namespace

ContributedBucket::ContributedBucket(const at::Tensor& values, std::span<const Contribution> tensors,
                                     const Wire& wire) {
  const c10::Device device = values.device();
  const auto* const start = values.const_data_ptr<float>();
  const at::Tensor copy = at::zeros_like(values);
  const auto values_from = [](const Contribution& tensor, std::uint64_t first) {
    return static_cast<const float*>(tensor.at(first));
  };
  const LaunchScope scope(device);
  for (const Contribution& tensor : tensors) {
    tensor.for_each_run([&](std::uint64_t first, std::uint64_t count) {
      const float* const from = values_from(tensor, first);
      float* const to = copy.mutable_data_ptr<float>() + (from - start);
      scope.kernels().subtract_estimate(scope.queue(), tensor.input(first, from), nullptr, count, to);
    });
    Range result = {0, tensor.count};
    if (tensor.owner_keeps_sum) result = owned_range(tensor.count, wire.rank(), wire.world_size(), tensor.ownership);
    if (result.count > 0) result.first = static_cast<std::uint64_t>(values_from(tensor, result.first) - start);
    results_.push_back(result);
  }
  wait_for_current_stream(device);
  contributions_ = copy.cpu();
}

std::vector<MeasuredLoss> ContributedBucket::compare(Wire& wire, double divisor, const at::Tensor& results) {
  if (wire.world_size() > 1) wire.all_reduce(contributions_);
  const at::Tensor means = contributions_.div_(divisor), on_host = results.cpu();
  std::vector<MeasuredLoss> losses;
  for (const Range& range : results_) {
    const auto part_of = [&](const at::Tensor& all) {
      return all.narrow(0, static_cast<std::int64_t>(range.first), static_cast<std::int64_t>(range.count))
          .to(at::kDouble);
    };
    losses.push_back(loss_of(part_of(on_host), part_of(means)));
  }
  return losses;
}

}  // namespace octavo
