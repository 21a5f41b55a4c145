// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/redistribute.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/comm/layout.h"

namespace octavo {

namespace {

at::Tensor part_of(const at::Tensor& tensor, std::uint64_t first, std::uint64_t count) {
  return tensor.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
}

at::Tensor zeros(std::uint64_t count) { return at::zeros({static_cast<std::int64_t>(count)}, at::kFloat); }

/// The elements before and behind a rank's own range, which is left out of what it sends.
struct Around {
  Range before, behind;
  Around(std::uint64_t count, Range own)
      : before{0, own.first}, behind{own.first + own.count, count - own.first - own.count} {}
};

}  // namespace

at::Tensor redistribute_sent(const std::vector<at::Tensor>& residuals, std::uint64_t count, int rank, int world_size) {
  const int old_size = static_cast<int>(residuals.size());
  at::Tensor owed = zeros(count);  // to the average
  for (int sender = 0; sender < old_size; ++sender) {
    const at::Tensor& residual = residuals[static_cast<std::size_t>(sender)];
    if (!residual.defined()) continue;
    const Around sent(count, owned_range(count, sender, old_size));
    part_of(owed, sent.before.first, sent.before.count).add_(part_of(residual, 0, sent.before.count));
    part_of(owed, sent.behind.first, sent.behind.count).add_(part_of(residual, sent.before.count, sent.behind.count));
  }
  if (world_size > 1) owed.mul_(static_cast<double>(world_size) / (world_size - 1) / old_size);  // W - 1 ranks send it
  const Around sent(count, owned_range(count, rank, world_size));
  return at::cat(
             {part_of(owed, sent.before.first, sent.before.count), part_of(owed, sent.behind.first, sent.behind.count)})
      .to(at::kBFloat16);
}

at::Tensor redistribute_owned(const std::vector<at::Tensor>& residuals, std::uint64_t count, int rank, int world_size) {
  const int old_size = static_cast<int>(residuals.size());
  at::Tensor all = zeros(count);
  for (int owner = 0; owner < old_size; ++owner) {
    const at::Tensor& residual = residuals[static_cast<std::size_t>(owner)];
    const Range own = owned_range(count, owner, old_size);
    if (residual.defined()) part_of(all, own.first, own.count).copy_(residual);
  }
  const Range own = owned_range(count, rank, world_size);
  return part_of(all, own.first, own.count).to(at::kBFloat16);
}

at::Tensor redistribute_whole(const std::vector<at::Tensor>& residuals, std::uint64_t count, int, int) {
  at::Tensor owed = zeros(count);
  for (const at::Tensor& residual : residuals) {
    if (residual.defined()) owed.add_(residual);
  }
  return owed.div_(static_cast<double>(residuals.size())).to(at::kBFloat16);
}

at::Tensor redistribute_shared(const std::vector<at::Tensor>& values, std::uint64_t, int, int) {
  return *std::find_if(values.begin(), values.end(), [](const at::Tensor& one) { return one.defined(); });
}

}  // namespace octavo
