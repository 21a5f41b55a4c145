// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "octavo/comm/wire.h"

namespace octavo {

/// Sends `own` to all other ranks and returns what each rank has sent, in rank order. All ranks call it together, with
/// the same type. Throws what Wire throws. Where a rank makes another call instead, what it seems to tell is the
/// beginning of what that call sent: let Told begin with a MessageHeader, or a digest, where that can happen.
template <class Told>
  requires std::is_trivially_copyable_v<Told>
std::vector<Told> tell_all(Wire& wire, const Told& own) {
  std::vector<Told> told(static_cast<std::size_t>(wire.world_size()), own);
  std::vector<std::uint64_t> rooms(told.size(), wire.room_for(sizeof(Told)));
  rooms[static_cast<std::size_t>(wire.rank())] = sizeof(Told);
  const std::uint64_t bytes = std::accumulate(rooms.begin(), rooms.end(), std::uint64_t{0});
  at::Tensor sent = at::empty({sizeof(Told)}, at::kByte);  // tensors, because a transfer may outlive a throw
  at::Tensor got = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), &own, sizeof(Told));
  const std::vector<Parcel> to_all(told.size(), {0, sizeof(Told)});
  Transfer transfer = wire.exchange(sent, to_all, got, rooms);
  transfer.wait();
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    std::memcpy(&told[rank], transfer.from(static_cast<int>(rank)), sizeof(Told));
  }
  return told;
}

}  // namespace octavo
