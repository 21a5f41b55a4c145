// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ranges>

namespace octavo {

/// Returns a view of all ranks of a group of `world_size` ranks but `rank`, in rank order.
inline auto other_ranks(int rank, int world_size) {
  return std::views::iota(0, world_size) | std::views::filter([rank](int other) { return other != rank; });
}

}  // namespace octavo
