// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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
  at::Tensor sent = at::empty({bytes}, at::kByte);  // tensors: a transfer may outlive a throw
  at::Tensor got = at::empty_like(sent);
  std::memcpy(sent.mutable_data_ptr(), told.data(), sent.nbytes());
  const std::vector<std::uint64_t> sizes(told.size(), sizeof(Told));
  wire.exchange(sent, sizes, got, sizes).wait();
  std::memcpy(told.data(), got.const_data_ptr(), got.nbytes());
  return told;
}

}  // namespace octavo
