// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/packed.h"

#include <ATen/ATen.h>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/state/redistribute.h"
#include "octavo/comm/state/state_store.h"

namespace octavo {

namespace {

bool is_of_own(Extent extent) { return extent == Extent::owned || extent == Extent::own_contribution; }

/// Calls visit(elements, byte offset) for the ranges that `rank` keeps something for, in rank order.
template <class Visit>
void for_each_packed(Extent extent, std::uint64_t count, int rank, int world_size, Ownership ownership, Visit visit) {
  std::uint64_t offset = 0;
  for (int owner = 0; owner < world_size; ++owner) {
    if ((owner == rank) != is_of_own(extent)) continue;
    const std::uint64_t elements = owned_range(count, owner, world_size, ownership).count;
    visit(elements, offset);
    offset += packing().payload_bytes(elements);
  }
}

}  // namespace

const Codec& packing() {
  static const BlockCoding coding(BlockCodec::int8, 0, /*stochastic=*/true);
  return coding;
}

std::uint64_t packed_bytes(Extent extent, std::uint64_t count, int rank, int world_size, Ownership ownership) {
  std::uint64_t bytes = 0;
  for_each_packed(extent, count, rank, world_size, ownership, [&](std::uint64_t elements, std::uint64_t offset) {
    bytes = offset + packing().payload_bytes(elements);
  });
  return bytes;
}

/// All ranges before this one have the size of the first one.
std::uint64_t packed_offset(const Range& range, std::uint64_t count, int rank, int world_size, Ownership ownership) {
  const std::uint64_t size = ownership.range_size(count, world_size);
  const std::uint64_t owner = range.first / size, own = owner > static_cast<std::uint64_t>(rank) ? 1 : 0;
  return (owner - own) * packing().payload_bytes(size);
}

at::Tensor unpack(const at::Tensor& bytes, Extent extent, std::uint64_t count, int rank, int world_size,
                  Ownership ownership) {
  const at::Tensor packed = bytes.cpu().contiguous();
  const std::uint64_t size = count_of(extent, count, rank, world_size, ownership);
  at::Tensor values = at::empty({static_cast<std::int64_t>(size)}, at::kFloat);
  auto* next = values.mutable_data_ptr<float>();
  for_each_packed(extent, count, rank, world_size, ownership, [&](std::uint64_t elements, std::uint64_t offset) {
    const PayloadPart all = {packed.mutable_data_ptr<std::uint8_t>() + offset, elements, {0, elements}};
    packing().decode(c10::kCPU, all, Store::assign, next, nullptr);
    next += elements;
  });
  return values;
}

at::Tensor pack(const at::Tensor& values, Extent extent, std::uint64_t count, int rank, int world_size,
                Ownership ownership) {
  const std::uint64_t bytes = packed_bytes(extent, count, rank, world_size, ownership);
  at::Tensor packed = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
  const auto* next = values.const_data_ptr<float>();
  for_each_packed(extent, count, rank, world_size, ownership, [&](std::uint64_t elements, std::uint64_t offset) {
    const PayloadPart all = {packed.mutable_data_ptr<std::uint8_t>() + offset, elements, {0, elements}};
    block_coding(BlockCodec::int8).encode(c10::kCPU, {next}, all, nullptr);
    next += elements;
  });
  return packed;
}

}  // namespace octavo
