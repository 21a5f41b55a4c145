// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/sparse_sum.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/tell_all.h"
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

void require_same_form(const Wire& wire, std::span<const Told> told) {
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].form == told[static_cast<std::size_t>(wire.rank())].form) continue;
    fail(ErrorCode::communication, "comm.sparse_sum", "rank ", rank, " has a sparse gradient of another dtype or of ",
         "other sizes than rank ", wire.rank(), ": all ranks must have the same model; the process group and its ",
         "handles must be rebuilt");
  }
}

/// What a rank has sent: its indices, then its values.
at::Tensor sparse_of(std::uint8_t* sent, std::uint64_t sent_bytes, const at::Tensor& like) {
  const at::Tensor bytes = at::from_blob(sent, {static_cast<std::int64_t>(sent_bytes)}, at::kByte);
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
  const auto told = tell_all(wire, Told{bytes.nbytes(), form_of(coalesced)});
  require_same_form(wire, told);
  std::vector<std::uint64_t> sizes;
  for (const Told& one : told) sizes.push_back(one.bytes);
  at::Tensor sent, received;
  std::memcpy(wire.reserve_to_send(sent, bytes.nbytes(), at::kCPU), bytes.const_data_ptr(), bytes.nbytes());
  Transfer transfer = send_to_others(wire, at::kCPU, sent, bytes.nbytes(), received, sizes);
  transfer.wait();
  at::Tensor sum = at::zeros_like(coalesced);
  for (int rank = 0; rank < wire.world_size(); ++rank) {
    sum =
        sum.add(rank == wire.rank() ? coalesced
                                    : sparse_of(transfer.from(rank), sizes[static_cast<std::size_t>(rank)], coalesced));
  }
  return sum.coalesce();
}

}  // namespace octavo
