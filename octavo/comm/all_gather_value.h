// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"

namespace octavo {

/// Sends `own` to all other ranks and returns what each rank has sent, in rank order. All ranks call it together, with
/// the same type. Throws what Wire throws. Where a rank makes another call instead, what it seems to tell is the
/// beginning of what that call sent: let Value begin with a MessageHeader, or a digest, where that can happen.
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

/// Throws Error communication where ranks have other digests: "[where] rank R and rank S `differ`". All ranks call it
/// together. Throws what Wire throws, too.
inline void require_same_on_all(Wire& wire, std::uint64_t digest, const char* where, const char* differ) {
  const std::vector<std::uint64_t> told = all_gather_value(wire, digest);
  const auto other = std::find_if(told.begin(), told.end(), [&](std::uint64_t one) { return one != digest; });
  if (other == told.end()) return;
  fail(ErrorCode::communication, where, "rank ", wire.name_of(wire.rank()), " and rank ",
       wire.name_of(static_cast<int>(other - told.begin())), " ", differ);
}

}  // namespace octavo
