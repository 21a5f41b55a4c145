// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/sparse_sum.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().view(-1).view(at::kByte); }

/// `own`, bytes, as often as there are ranks: each gets all of it.
at::Tensor for_all(const Wire& wire, const at::Tensor& own) { return own.repeat({wire.world_size()}); }

/// How many bytes each rank has for each of the others.
std::vector<std::uint64_t> tell_sizes(Wire& wire, std::uint64_t own) {
  const auto world = static_cast<std::size_t>(wire.world_size());
  std::vector<std::uint64_t> told(world);
  at::Tensor sent = for_all(wire, bytes_of(at::scalar_tensor(static_cast<std::int64_t>(own), at::kLong)));
  at::Tensor got = at::from_blob(told.data(), {static_cast<std::int64_t>(sent.nbytes())}, at::kByte);
  const std::vector<std::uint64_t> sizes(world, sizeof own);
  wire.exchange(sent, sizes, got, sizes).wait();
  return told;
}

/// What a rank has sent: its indices, then its values.
at::Tensor sparse_of(const at::Tensor& bytes, const at::Tensor& like, int rank) {
  const std::int64_t of_indices = like.sparse_dim() * static_cast<std::int64_t>(sizeof(std::int64_t));
  auto shape = like._values().sizes().vec();
  shape.front() = 1;
  const std::int64_t of_values = c10::multiply_integers(shape) * static_cast<std::int64_t>(like.itemsize());
  const std::int64_t count = bytes.numel() / (of_indices + of_values);
  if (bytes.numel() != count * (of_indices + of_values)) {
    fail(ErrorCode::communication, "comm.sparse_sum", "rank ", rank, " has sent ", bytes.numel(), " bytes of a sparse ",
         "gradient whose elements take ", of_indices + of_values, ": all ranks must have the same model; the process ",
         "group and its handles must be rebuilt");
  }
  shape.front() = count;
  const at::Tensor indices = bytes.narrow(0, 0, count * of_indices).clone().view(at::kLong);
  const at::Tensor values = bytes.narrow(0, count * of_indices, count * of_values).clone().view(like.scalar_type());
  return at::sparse_coo_tensor(indices.view({like.sparse_dim(), count}), values.view(shape), like.sizes(),
                               like._values().options().layout(at::kSparse));
}

}  // namespace

at::Tensor sum_of_sparse(Wire& wire, const at::Tensor& own) {
  const at::Tensor coalesced = own.coalesce();
  const at::Tensor bytes = at::cat({bytes_of(coalesced._indices()), bytes_of(coalesced._values())});
  const std::vector<std::uint64_t> received = tell_sizes(wire, bytes.nbytes());
  const std::vector<std::uint64_t> sent(received.size(), bytes.nbytes());
  at::Tensor to_all = for_all(wire, bytes);
  at::Tensor from_all =
      at::empty({static_cast<std::int64_t>(std::reduce(received.begin(), received.end()))}, bytes.options());
  wire.exchange(to_all, sent, from_all, received).wait();
  at::Tensor sum = at::zeros_like(coalesced);
  std::int64_t first = 0;
  for (int rank = 0; rank < wire.world_size(); ++rank) {
    const auto size = static_cast<std::int64_t>(received[static_cast<std::size_t>(rank)]);
    sum = sum.add(sparse_of(from_all.narrow(0, first, size), coalesced, rank));
    first += size;
  }
  return sum.coalesce();
}

}  // namespace octavo
