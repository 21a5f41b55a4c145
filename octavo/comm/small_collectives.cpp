// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/small_collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "octavo/codec/codec.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

void require_same_on_all(Wire& wire, std::uint64_t digest, std::string_view where, std::string_view differ) {
  const std::vector<std::uint64_t> told = all_gather_value(wire, digest);
  const auto other = std::find_if(told.begin(), told.end(), [&](std::uint64_t one) { return one != digest; });
  if (other == told.end()) return;
  fail(ErrorCode::communication, where, "rank ", wire.name_of(wire.rank()), " and rank ",
       wire.name_of(static_cast<int>(other - told.begin())), " ", differ);
}

at::Tensor all_gather(Wire& wire, const at::Tensor& own, std::span<const std::uint64_t> bytes, std::string_view of,
                      std::string_view where) {
  const auto rank = static_cast<std::size_t>(wire.rank());
  if (bytes.size() != static_cast<std::size_t>(wire.world_size()) || bytes[rank] != own.nbytes()) {
    fail(ErrorCode::invalid_argument, where, "rank ", wire.name_of(wire.rank()), ": expected the bytes of each of ",
         wire.world_size(), " ranks, and its own ", own.nbytes(), " among them");
  }
  std::uint64_t digest = fingerprint_of(std::string(of));
  for (const std::uint64_t size : bytes) digest = rules::derive_key(digest, size);
  require_same_on_all(wire, digest, where,
                      c10::str("gather different values, this rank those of ", of,
                               ": let all ranks make the same calls in the same order"));
  const std::uint64_t sum = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  at::Tensor all = at::empty({static_cast<std::int64_t>(sum)}, at::kByte);
  const std::vector<Parcel> to_all(bytes.size(), {0, own.nbytes()});
  wire.exchange(own, to_all, all, bytes).wait();
  return all;
}

void broadcast_from_rank_0(Wire& wire, std::span<std::int64_t> numbers) {
  if (wire.world_size() == 1) return;
  at::Tensor sum = at::zeros({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  auto* const values = sum.mutable_data_ptr<std::int64_t>();
  if (wire.rank() == 0) std::ranges::copy(numbers, values);
  wire.all_reduce(sum);
  std::copy_n(values, numbers.size(), numbers.begin());
}

}  // namespace octavo
