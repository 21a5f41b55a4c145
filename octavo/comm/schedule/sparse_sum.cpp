// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/sparse_sum.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().view(-1).view(at::kByte); }

/// What a rank tells the others of its tensor.
struct Told {
  std::uint64_t bytes;
  std::uint64_t form;  // of its elements: dtype and sizes, as one number
};

std::uint64_t form_of(const at::Tensor& sparse) {
  std::uint64_t form = rules::derive_key(static_cast<std::uint64_t>(sparse.scalar_type()),
                                         static_cast<std::uint64_t>(sparse.sparse_dim()));
  for (const std::int64_t size : sparse.sizes()) form = rules::derive_key(form, static_cast<std::uint64_t>(size));
  return form;
}

std::vector<Told> tell(Wire& wire, const Told& own) {
  const auto world = static_cast<std::size_t>(wire.world_size());
  std::vector<Told> told(world, own);
  at::Tensor from_all = at::empty({static_cast<std::int64_t>(world * sizeof(Told))}, at::kByte);
  at::Tensor to_all = at::empty_like(from_all);  // memory that a transfer keeps, also one that is given up
  std::memcpy(to_all.mutable_data_ptr(), told.data(), to_all.nbytes());
  const std::vector<std::uint64_t> sizes(world, sizeof(Told));
  wire.exchange(to_all, sizes, from_all, sizes).wait();
  std::memcpy(told.data(), from_all.const_data_ptr(), from_all.nbytes());
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (told[rank].form == own.form) continue;
    fail(ErrorCode::communication, "comm.sparse_sum", "rank ", rank, " has a sparse gradient of another dtype or of ",
         "other sizes than rank ", wire.rank(), ": all ranks must have the same model; the process group and its ",
         "handles must be rebuilt");
  }
  return told;
}

/// What a rank has sent: its indices, then its values.
at::Tensor sparse_of(const at::Tensor& bytes, const at::Tensor& like) {
  const std::int64_t of_indices = like.sparse_dim() * static_cast<std::int64_t>(sizeof(std::int64_t));
  auto shape = like._values().sizes().vec();
  shape.front() = 1;
  const std::int64_t of_values = c10::multiply_integers(shape) * static_cast<std::int64_t>(like.itemsize());
  const std::int64_t count = shape.front() = bytes.numel() / (of_indices + of_values);
  const at::Tensor indices = bytes.narrow(0, 0, count * of_indices).clone().view(at::kLong);
  const at::Tensor values = bytes.narrow(0, count * of_indices, count * of_values).clone().view(like.scalar_type());
  return at::sparse_coo_tensor(indices.view({like.sparse_dim(), count}), values.view(shape), like.sizes(),
                               like._values().options().layout(at::kSparse));
}

}  // namespace

at::Tensor sum_of_sparse(Wire& wire, const at::Tensor& own) {
  const at::Tensor coalesced = own.coalesce();
  const at::Tensor bytes = at::cat({bytes_of(coalesced._indices()), bytes_of(coalesced._values())});
  std::vector<std::uint64_t> received;
  for (const Told& one : tell(wire, {bytes.nbytes(), form_of(coalesced)})) received.push_back(one.bytes);
  const std::vector<std::uint64_t> sent(received.size(), bytes.nbytes());
  at::Tensor to_all = bytes.repeat({wire.world_size()});
  at::Tensor from_all =
      at::empty({static_cast<std::int64_t>(std::reduce(received.begin(), received.end()))}, bytes.options());
  wire.exchange(to_all, sent, from_all, received).wait();
  at::Tensor sum = at::zeros_like(coalesced);
  std::int64_t first = 0;
  for (int rank = 0; rank < wire.world_size(); ++rank) {
    const auto size = static_cast<std::int64_t>(received[static_cast<std::size_t>(rank)]);
    sum = sum.add(sparse_of(from_all.narrow(0, first, size), coalesced));
    first += size;
  }
  return sum.coalesce();
}

}  // namespace octavo
