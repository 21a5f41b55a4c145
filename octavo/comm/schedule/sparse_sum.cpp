// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/sparse_sum.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.contiguous().view(-1).view(at::kByte); }

/// What a rank tells the others of its tensor.
struct SizeAndForm {
  MessageHeader header;
  std::uint64_t bytes;  // of the message with the tensor
  std::uint64_t form;   // the dtype and sizes of the tensor, as one number
};

std::uint64_t form_of(const at::Tensor& sparse) {
  std::uint64_t form = rules::derive_key(static_cast<std::uint64_t>(sparse.scalar_type()),
                                         static_cast<std::uint64_t>(sparse.sparse_dim()));
  for (const std::int64_t size : sparse.sizes()) form = rules::derive_key(form, static_cast<std::uint64_t>(size));
  return form;
}

std::vector<SizeAndForm> sizes_and_forms(Wire& wire, const at::Tensor& sparse, std::uint64_t bytes,
                                         std::uint64_t digest) {
  SizeAndForm own = {{}, bytes, form_of(sparse)};
  seal(reinterpret_cast<std::uint8_t*>(&own), sizeof own, digest);
  std::vector<SizeAndForm> told = all_gather_value(wire, own);
  for (int rank = 0; rank < wire.world_size(); ++rank) {
    const SizeAndForm& one = told[static_cast<std::size_t>(rank)];
    require_sealed(reinterpret_cast<const std::uint8_t*>(&one), sizeof one, digest, wire, rank);
    if (one.form == own.form) continue;
    fail(ErrorCode::communication, "comm.sparse_sum", "rank ", wire.name_of(rank),
         " has a sparse gradient of another dtype or of ", "other sizes than rank ", wire.name_of(wire.rank()),
         ": all ranks must have the same model", kRebuild);
  }
  return told;
}

/// Returns a message: room for its header, the indices, the values.
at::Tensor message_of(const at::Tensor& sparse) {
  const at::Tensor header = at::zeros({sizeof(MessageHeader)}, at::kByte);
  return at::cat({header, as_bytes(sparse._indices()), as_bytes(sparse._values())});
}

/// Throws Error communication unless `indices` [dimensions, count], sent by rank `sender`, are indices of elements of
/// such a tensor. torch checks none of them, and would write to wherever they point.
void require_within(const at::Tensor& indices, at::IntArrayRef sizes, int sender) {
  const at::Tensor limits = at::tensor(sizes.slice(0, static_cast<std::size_t>(indices.size(0)))).unsqueeze(1);
  if (at::logical_and(indices.ge(0), indices.lt(limits)).all().item<bool>()) return;
  fail(ErrorCode::communication, "comm.sparse_sum", "rank ", sender, " has a sparse gradient with an index that is ",
       "out of the range of its sizes, ", sizes, ": it was made, or has become, wrong there", kRebuild);
}

/// Returns the tensor of a sealed message of rank `sender`. `sent`: the message without its header.
at::Tensor sparse_of(std::uint8_t* sent, std::uint64_t sent_bytes, const at::Tensor& like, int sender) {
  const at::Tensor bytes = at::from_blob(sent, {static_cast<std::int64_t>(sent_bytes)}, at::kByte);
  const std::int64_t of_indices = like.sparse_dim() * static_cast<std::int64_t>(sizeof(std::int64_t));
  auto shape = like._values().sizes().vec();
  shape.front() = 1;
  const std::int64_t of_values = c10::multiply_integers(shape) * static_cast<std::int64_t>(like.itemsize());
  const std::int64_t count = shape.front() = bytes.numel() / (of_indices + of_values);
  const at::Tensor indices =
      bytes.narrow(0, 0, count * of_indices).clone().view(at::kLong).view({like.sparse_dim(), count});
  require_within(indices, like.sizes(), sender);
  const at::Tensor values = bytes.narrow(0, count * of_indices, count * of_values).clone().view(like.scalar_type());
  return at::sparse_coo_tensor(indices, values.view(shape), like.sizes(), like._values().options().layout(at::kSparse));
}

}  // namespace

at::Tensor sum_of_sparse(Wire& wire, const at::Tensor& own, std::uint64_t digest) {
  const at::Tensor coalesced = own.coalesce(), message = message_of(coalesced);
  std::vector<std::uint64_t> sizes;
  for (const SizeAndForm& one : sizes_and_forms(wire, coalesced, message.nbytes(), digest)) sizes.push_back(one.bytes);
  at::Tensor sent, received;
  std::uint8_t* const to_send = wire.reserve_to_send(sent, message.nbytes(), at::kCPU);
  std::memcpy(to_send, message.const_data_ptr(), message.nbytes());
  seal(to_send, message.nbytes(), digest);
  Transfer transfer = send_to_others(wire, at::kCPU, sent, message.nbytes(), received, sizes);
  transfer.wait();
  at::Tensor sum = at::zeros_like(coalesced);
  for (int rank = 0; rank < wire.world_size(); ++rank) {
    if (rank == wire.rank()) {
      // so that this rank fails with the others' error
      require_within(coalesced._indices(), coalesced.sizes(), wire.name_of(rank));
      sum = sum.add(coalesced);
      continue;
    }
    const std::uint64_t bytes = sizes[static_cast<std::size_t>(rank)];
    require_sealed(transfer.from(rank), bytes, digest, wire, rank);
    std::uint8_t* const sent_tensor = transfer.from(rank) + sizeof(MessageHeader);
    sum = sum.add(sparse_of(sent_tensor, bytes - sizeof(MessageHeader), coalesced, wire.name_of(rank)));
  }
  return sum.coalesce();
}

}  // namespace octavo
