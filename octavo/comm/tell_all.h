// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "octavo/comm/wire.h"

namespace octavo {

/// What each rank has for all others, from all of them, in rank order. All ranks call it together, with the same type.
/// Throws what Wire throws.
template <class Told>
  requires std::is_trivially_copyable_v<Told>
std::vector<Told> tell_all(Wire& wire, const Told& own) {
  std::vector<Told> told(static_cast<std::size_t>(wire.world_size()), own);
  const auto bytes = static_cast<std::int64_t>(told.size() * sizeof(Told));
  at::Tensor sent = at::empty({sizeof(Told)}, at::kByte);  // tensors: a transfer may outlive a throw
  at::Tensor got = at::empty({bytes}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), &own, sizeof(Told));
  const std::vector<Parcel> to_all(told.size(), {0, sizeof(Told)});
  wire.exchange(sent, to_all, got, std::vector<std::uint64_t>(told.size(), sizeof(Told))).wait();
  std::memcpy(told.data(), got.const_data_ptr(), got.nbytes());
  return told;
}

}  // namespace octavo
