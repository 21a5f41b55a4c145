// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/messages.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

at::Tensor prefix(const at::Tensor& buffer, std::uint64_t bytes) {
  return buffer.narrow(0, 0, static_cast<std::int64_t>(bytes));
}

/// Of up to kPart bytes: sums, and sums of sums, of 64-bit words in lanes, after Fletcher (1982). A flipped bit changes
/// the first, words that changed places the second; the compiler makes vectors of the lanes.
std::uint64_t part_checksum(const std::uint8_t* bytes, std::uint64_t count) {
  constexpr std::uint64_t kLanes = 8, kStep = kLanes * sizeof(std::uint64_t);
  std::uint64_t sums[kLanes] = {}, sums_of_sums[kLanes] = {}, words[kLanes];
  for (std::uint64_t at = 0; at < count; at += kStep) {
    if (count - at < kStep) std::fill_n(words, kLanes, 0);
    std::memcpy(words, bytes + at, std::min(kStep, count - at));
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += words[lane];
      sums_of_sums[lane] += sums[lane];
    }
  }
  std::uint64_t all = count;
  for (const auto& lanes : {sums, sums_of_sums}) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) all = rules::derive_key(all, lanes[lane]);
  }
  return all;
}

/// On all threads; the same whatever their number.
std::uint64_t checksum(const std::uint8_t* bytes, std::uint64_t count) {
  constexpr std::uint64_t kPart = 1U << 18;
  const std::uint64_t parts = (count + kPart - 1) / kPart;
  std::vector<std::uint64_t> sums(parts);
  at::parallel_for(0, static_cast<std::int64_t>(parts), 1, [&](std::int64_t from, std::int64_t to) {
    for (auto part = static_cast<std::uint64_t>(from); part < static_cast<std::uint64_t>(to); ++part) {
      sums[part] = part_checksum(bytes + part * kPart, std::min(kPart, count - part * kPart));
    }
  });
  std::uint64_t all = count;
  for (const std::uint64_t sum : sums) all = rules::derive_key(all, sum);
  return all;
}

}  // namespace

void seal(std::uint8_t* message, std::uint64_t bytes, std::uint64_t digest) {
  const MessageHeader header = {digest, checksum(message + sizeof header, bytes - sizeof header)};
  std::memcpy(message, &header, sizeof header);
}

void require_sealed(const std::uint8_t* message, std::uint64_t bytes, std::uint64_t digest, int sender, int receiver) {
  MessageHeader header;
  std::memcpy(&header, message, sizeof header);
  if (header.digest == digest) {
    if (header.checksum == checksum(message + sizeof header, bytes - sizeof header)) return;
    fail(ErrorCode::communication, "comm.schedule", "what rank ", receiver, " received of rank ", sender,
         " is not what was sent: a bit has flipped in a memory or on the network; the process group and its handles ",
         "must be rebuilt");
  }
  fail(ErrorCode::communication, "comm.schedule", "rank ", receiver,
       " was sent a bucket of another step, plan or model by rank ", sender,
       ": give all ranks the same plan, model, seed and checkpoint, and let them run the same graphs; the process "
       "group and its handles must be rebuilt");
}

std::uint64_t sealed_bytes(std::span<const Contribution> tensors, const Codec* Contribution::* codec,
                           std::uint64_t header_bytes, std::uint64_t bytes) {
  const bool as_they_are =
      std::ranges::all_of(tensors, [&](const Contribution& one) { return (one.*codec)->traits().is_exact(); });
  return as_they_are ? header_bytes : bytes;
}

std::vector<Message> cut(std::span<const Contribution> tensors, const Codec* Contribution::* codec, int world_size,
                         std::uint64_t header_bytes) {
  std::vector<EncodedTensor> encoded;
  for (const Contribution& tensor : tensors) encoded.push_back({tensor.count, tensor.*codec, tensor.ownership});
  return cut(encoded, world_size, header_bytes);
}

std::vector<std::uint64_t> sizes(const std::vector<Message>& messages) {
  std::vector<std::uint64_t> bytes;
  for (const Message& message : messages) bytes.push_back(message.bytes);
  return bytes;
}

Transfer exchange_with_others(Wire& wire, c10::Device device, at::Tensor& send, std::vector<std::uint64_t> send_bytes,
                              at::Tensor& receive, std::vector<std::uint64_t> receive_bytes) {
  const auto self = static_cast<std::size_t>(wire.rank());
  send_bytes[self] = receive_bytes[self] = 0;
  if (wire.shares_memory(device)) {
    std::vector<Parcel> parcels;
    std::uint64_t offset = 0;
    for (const std::uint64_t bytes : send_bytes) parcels.push_back({std::exchange(offset, offset + bytes), bytes});
    return wire.exchange_in_place(send, parcels, receive_bytes);
  }
  for (std::size_t peer = 0; device.is_cpu() && peer < receive_bytes.size(); ++peer) {  // memory that is not touched
    if (peer != self) receive_bytes[peer] = wire.room_for(receive_bytes[peer]);
  }
  const std::uint64_t received = bytes_without(receive_bytes, wire.rank());
  reserve_on_host(receive, received, device);
  at::Tensor out = prefix(send, bytes_without(send_bytes, wire.rank())), in = prefix(receive, received);
  return wire.exchange(out, send_bytes, in, receive_bytes);
}

Transfer send_to_others(Wire& wire, c10::Device device, at::Tensor& send, std::uint64_t bytes, at::Tensor& receive,
                        std::vector<std::uint64_t> receive_bytes) {
  const auto world = static_cast<std::size_t>(wire.world_size());
  if (wire.shares_memory(device)) {
    return wire.exchange_in_place(send, std::vector<Parcel>(world, {0, bytes}), receive_bytes);
  }
  constexpr std::uint64_t kGrainBytes = 1U << 18;
  auto* const message = send.mutable_data_ptr<std::uint8_t>();
  const auto copies = static_cast<std::int64_t>(std::max<std::size_t>(world, 2) - 2);
  const auto grain = static_cast<std::int64_t>(kGrainBytes / std::clamp<std::uint64_t>(bytes, 1, kGrainBytes));
  for_parts(c10::kCPU, copies, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t copy = first; copy < last; ++copy) {
      std::memcpy(message + static_cast<std::uint64_t>(copy + 1) * bytes, message, bytes);
    }
  });
  return exchange_with_others(wire, device, send, std::vector<std::uint64_t>(world, bytes), receive,
                              std::move(receive_bytes));
}

std::uint64_t room_for_others(const Wire& wire, c10::Device device, std::uint64_t bytes) {
  const auto others = static_cast<std::uint64_t>(wire.world_size()) - 1;
  return wire.shares_memory(device) ? bytes : bytes * std::max<std::uint64_t>(1, others);
}

std::uint64_t bytes_without(std::span<const std::uint64_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}) - bytes[static_cast<std::size_t>(rank)];
}

}  // namespace octavo
