// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "octavo/comm/wire.h"
#include "octavo/export.h"

/// What ranks tell one another beside the values that they exchange. All ranks call each function together. Each throws
/// what Wire throws.
namespace octavo {

/// Sends `own` to all other ranks and returns what each rank has sent, in rank order. All ranks use the same type.
/// Where a rank makes another call instead, what it seems to tell is the beginning of what that call sent: let Value
/// begin with a MessageHeader, or a digest, where that can happen.
template <class Value>
  requires std::is_trivially_copyable_v<Value>
std::vector<Value> all_gather_value(Wire& wire, const Value& own) {
  std::vector<Value> all(static_cast<std::size_t>(wire.world_size()), own);
  std::vector<std::uint64_t> rooms(all.size(), wire.room_for(sizeof(Value)));
  rooms[static_cast<std::size_t>(wire.rank())] = sizeof(Value);
  const std::uint64_t bytes = std::accumulate(rooms.begin(), rooms.end(), std::uint64_t{0});
  at::Tensor sent = at::empty({sizeof(Value)}, at::kByte);  // tensors, because a transfer may outlive a throw
  at::Tensor got = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), &own, sizeof(Value));
  const std::vector<Parcel> to_all(all.size(), {0, sizeof(Value)});
  Transfer transfer = wire.exchange(sent, to_all, got, rooms);
  transfer.wait();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(&all[rank], transfer.from(static_cast<int>(rank)), sizeof(Value));
  }
  return all;
}

/// Throws Error communication where ranks have other digests: "[where] rank R and rank S `differ`".
OCTAVO_API void require_same_on_all(Wire& wire, std::uint64_t digest, std::string_view where, std::string_view differ);

/// Returns the bytes of all ranks, one rank's after another's, on all of them. `own`: what this rank gives, uint8 of
/// one dimension, on the CPU. `bytes`: how many each rank gives, in rank order. `of`: what they are, the same on all
/// ranks. `where`: the place in errors. Throws Error invalid_argument where `bytes` is not for these ranks or not for
/// `own`, and Error communication where ranks have other `bytes` or another `of`; no values are sent then.
OCTAVO_API at::Tensor all_gather(Wire& wire, const at::Tensor& own, std::span<const std::uint64_t> bytes,
                                 std::string_view of, std::string_view where);

/// Replaces the numbers by those of rank 0. All ranks have as many.
OCTAVO_API void broadcast_from_rank_0(Wire& wire, std::span<std::int64_t> numbers);

}  // namespace octavo
