// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/ownership.h"

#include <algorithm>

#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

std::uint64_t Ownership::range_size(std::uint64_t count, int world_size) const {
  if (unit == 0) {
    fail(ErrorCode::invalid_argument, "comm.ownership", "expected ranges in units of at least 1 element, got 0");
  }
  const auto world = static_cast<std::uint64_t>(world_size);
  const std::uint64_t equal = divide_up(count, world);
  return round_up(equal, unit);
}

Range owned_range(std::uint64_t count, int rank, int world_size, Ownership ownership) {
  if (rank < 0 || rank >= world_size) {
    fail(ErrorCode::invalid_argument, "comm.owned_range", "expected a rank below a positive number of ranks, got ",
         rank, " of ", world_size);
  }
  const std::uint64_t size = ownership.range_size(count, world_size);
  const std::uint64_t first = std::min(count, size * static_cast<std::uint64_t>(rank));
  return {first, std::min(size, count - first)};
}

OthersRanges others_ranges(std::uint64_t count, int rank, int world_size, Ownership ownership) {
  const Range own = owned_range(count, rank, world_size, ownership);
  return {count - own.count, own};
}

}  // namespace octavo
