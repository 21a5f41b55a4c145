// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/redistribute.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/comm/state/packed.h"
#include "octavo/comm/state/state_store.h"

namespace octavo {

namespace {

using Kept = std::vector<at::Tensor>;  // by rank of the old world

at::Tensor part_of(const at::Tensor& tensor, std::uint64_t first, std::uint64_t count) {
  return tensor.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
}

at::Tensor zeros(std::uint64_t count, at::Device device = at::kCPU) {
  return at::zeros({static_cast<std::int64_t>(count)}, at::TensorOptions(at::kFloat).device(device));
}

/// The elements before and after a rank's own range, which is left out of what it sends.
struct Around {
  Range before, behind;
  Around(std::uint64_t count, Range own)
      : before{0, own.first}, behind{own.first + own.count, count - own.first - own.count} {}
};

int size_of(const Kept& kept) { return static_cast<int>(kept.size()); }

/// Returns the part that a rank sends of a whole tensor.
at::Tensor sent_part_of(const at::Tensor& all, std::uint64_t count, int rank, int world_size, Ownership ownership) {
  const Around sent(count, owned_range(count, rank, world_size, ownership));
  return at::cat(
      {part_of(all, sent.before.first, sent.before.count), part_of(all, sent.behind.first, sent.behind.count)});
}

/// Returns the sums over the ranks, in their order, for each element of the whole tensor.
at::Tensor sum_of_sent(const Kept& kept, std::uint64_t count, Ownership ownership) {
  at::Tensor sum = zeros(count);
  for (int sender = 0; sender < size_of(kept); ++sender) {
    const at::Tensor& values = kept[static_cast<std::size_t>(sender)];
    if (values.defined()) sum.add_(in_their_places({0, count}, values, {}, count, sender, size_of(kept), ownership));
  }
  return sum;
}

at::Tensor sum_of_received(const Kept& kept, std::uint64_t count, Ownership ownership) {
  at::Tensor sum = zeros(count);
  for (int owner = 0; owner < size_of(kept); ++owner) {
    const at::Tensor& values = kept[static_cast<std::size_t>(owner)];
    const Range own = owned_range(count, owner, size_of(kept), ownership);
    for (int sender = 0; values.defined() && sender + 1 < size_of(kept); ++sender) {
      part_of(sum, own.first, own.count)
          .add_(part_of(values, static_cast<std::uint64_t>(sender) * own.count, own.count));
    }
  }
  return sum;
}

at::Tensor owned_parts(const Kept& kept, std::uint64_t count, Ownership ownership) {
  at::Tensor all = zeros(count);
  for (int owner = 0; owner < size_of(kept); ++owner) {
    const at::Tensor& values = kept[static_cast<std::size_t>(owner)];
    const Range own = owned_range(count, owner, size_of(kept), ownership);
    if (values.defined()) part_of(all, own.first, own.count).copy_(values);
  }
  return all;
}

at::Tensor mean_of(const Kept& kept, std::uint64_t count) {
  at::Tensor sum = zeros(count);
  for (const at::Tensor& values : kept) {
    if (values.defined()) sum.add_(values);
  }
  return sum.div_(size_of(kept));
}

/// Returns what all senders owed to the average, as what each of the W-1 senders of the new world owes.
at::Tensor owed(const Kept& kept, std::uint64_t count, int world_size, Ownership ownership) {
  at::Tensor sum = sum_of_sent(kept, count, ownership);
  if (world_size > 1) sum.mul_(static_cast<double>(world_size) / (world_size - 1) / size_of(kept));
  return sum;
}

/// Returns the mean over the senders of each element.
at::Tensor mean_estimate(at::Tensor sum, const Kept& kept) { return sum.div_(std::max(1, size_of(kept) - 1)); }

/// Redistributes in float32: unpacks what the old world kept, and packs the result.
at::Tensor redistribute_packed(Extent extent, Kept kept, std::uint64_t count, int rank, int world_size,
                               Ownership ownership) {
  for (int old_rank = 0; old_rank < size_of(kept); ++old_rank) {
    at::Tensor& values = kept[static_cast<std::size_t>(old_rank)];
    if (values.defined()) values = unpack(values, extent, count, old_rank, size_of(kept), ownership);
  }
  const at::Tensor ours = redistribute(extent, kept, count, rank, world_size, ownership);
  return pack(ours, extent, count, rank, world_size, ownership);
}

const at::Tensor& any_of(const Kept& kept) {
  return *std::find_if(kept.begin(), kept.end(), [](const at::Tensor& values) { return values.defined(); });
}

}  // namespace

std::uint64_t count_of(Extent extent, std::uint64_t count, int rank, int world_size, Ownership ownership) {
  const OthersRanges sent = others_ranges(count, rank, world_size, ownership);
  switch (extent) {
    case Extent::sent:
    case Extent::sent_estimate: return sent.count;
    case Extent::owned:
    case Extent::own_contribution: return sent.own.count;
    case Extent::received_estimates: return sent.own.count * static_cast<std::uint64_t>(world_size - 1);
    case Extent::whole:
    case Extent::replicated:
    case Extent::shared: break;
  }
  return count;
}

bool is_estimate(Extent extent) { return extent == Extent::sent_estimate || extent == Extent::received_estimates; }

bool is_usable(Extent extent, const Kept& kept, std::uint64_t count, Ownership ownership) {
  if (!is_estimate(extent)) return true;
  for (int rank = 0; rank < size_of(kept); ++rank) {
    const bool is_there = kept[static_cast<std::size_t>(rank)].defined();
    if (!is_there && count_of(extent, count, rank, size_of(kept), ownership) > 0) return false;
  }
  return true;
}

at::Tensor redistribute(Extent extent, const Kept& kept, std::uint64_t count, int rank, int world_size,
                        Ownership ownership) {
  const at::ScalarType dtype = any_of(kept).scalar_type();
  if (dtype == at::kByte) return redistribute_packed(extent, kept, count, rank, world_size, ownership);
  const Range own = owned_range(count, rank, world_size, ownership);
  switch (extent) {
    case Extent::sent:
      return sent_part_of(owed(kept, count, world_size, ownership), count, rank, world_size, ownership).to(dtype);
    case Extent::owned: return part_of(owned_parts(kept, count, ownership), own.first, own.count).to(dtype);
    case Extent::own_contribution: {  // in the average it counts as one part in the number of ranks
      const double share = static_cast<double>(world_size) / size_of(kept);
      return part_of(owned_parts(kept, count, ownership), own.first, own.count).mul(share).to(dtype);
    }
    case Extent::whole: return mean_of(kept, count).to(dtype);
    case Extent::sent_estimate:
      return sent_part_of(mean_estimate(sum_of_sent(kept, count, ownership), kept), count, rank, world_size, ownership)
          .to(dtype);
    case Extent::received_estimates: {
      const at::Tensor mean = mean_estimate(sum_of_received(kept, count, ownership), kept);
      return part_of(mean, own.first, own.count).repeat({world_size - 1}).to(dtype);
    }
    case Extent::replicated:
    case Extent::shared: break;
  }
  return any_of(kept);
}

at::Tensor in_their_places(Range range, const at::Tensor& sent, const at::Tensor& own, std::uint64_t count, int rank,
                           int world_size, Ownership ownership) {
  const Range owned = owned_range(count, rank, world_size, ownership);
  const Around around(count, owned);
  at::Tensor values = zeros(range.count, (sent.defined() ? sent : own).device());
  // `kept` holds, from its element `first` on, the elements `places`
  const auto put = [&](const at::Tensor& kept, std::uint64_t first, Range places) {
    const std::uint64_t begin = std::max(range.first, places.first);
    const std::uint64_t end = std::min(range.first + range.count, places.first + places.count);
    if (!kept.defined() || begin >= end) return;
    part_of(values, begin - range.first, end - begin).copy_(part_of(kept, first + begin - places.first, end - begin));
  };
  put(sent, 0, around.before);
  put(sent, around.before.count, around.behind);
  put(own, 0, owned);
  return values;
}

}  // namespace octavo
