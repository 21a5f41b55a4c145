// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/messages.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

/// Returns the checksum of up to kPart bytes: sums, and sums of sums, of 64-bit words in lanes, after Fletcher (1982).
/// A flipped bit changes the sums, words in the wrong order change the sums of sums. The compiler makes vectors of the
/// lanes.
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

/// Returns a checksum that is computed on all threads and is the same whatever their number.
std::uint64_t checksum(const std::uint8_t* bytes, std::uint64_t count) {
  constexpr std::uint64_t kPart = 1U << 18;
  const std::uint64_t parts = divide_up(count, kPart);
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

void require_sealed(const std::uint8_t* message, std::uint64_t bytes, std::uint64_t digest, const Wire& wire,
                    int sender) {
  MessageHeader header;
  std::memcpy(&header, message, sizeof header);
  if (header.digest == digest) {
    if (header.checksum == checksum(message + sizeof header, bytes - sizeof header)) return;
    fail(ErrorCode::communication, "comm.schedule", "rank ", wire.name_of(wire.rank()),
         " received other bytes than rank ", wire.name_of(sender),
         " sent: a bit has flipped in memory or on the network", kRebuild);
  }
  fail(ErrorCode::communication, "comm.schedule", "rank ", wire.name_of(wire.rank()),
       " was sent a bucket of another step, plan or model by rank ", wire.name_of(sender),
       ": give all ranks the same plan, model, seed and checkpoint, and let them run, and differentiate, the same "
       "modules",
       kRebuild);
}

std::uint64_t sealed_bytes(std::span<const Contribution> tensors, Way way, std::uint64_t header_bytes,
                           std::uint64_t bytes) {
  const bool as_they_are =
      std::ranges::all_of(tensors, [&](const Contribution& one) { return one.codec(way).traits().is_exact(); });
  return as_they_are ? header_bytes : bytes;
}

std::vector<Message> cut(std::span<const Contribution> tensors, Way way, int world_size, std::uint64_t header_bytes) {
  std::vector<EncodedTensor> encoded;
  for (const Contribution& tensor : tensors) encoded.push_back({tensor.count, &tensor.codec(way), tensor.ownership});
  return cut(encoded, world_size, header_bytes);
}

std::uint64_t longest_message(std::uint64_t values, std::uint64_t tensors) {
  constexpr std::uint64_t kLongestHeader = 4096, kLongestValue = sizeof(double), kPower = sizeof(float);
  return kLongestHeader + kPower * tensors + kLongestValue * values;
}

std::vector<std::uint64_t> sizes(const std::vector<Message>& messages) {
  std::vector<std::uint64_t> bytes;
  for (const Message& message : messages) bytes.push_back(message.bytes);
  return bytes;
}

Transfer exchange_with_others(Wire& wire, c10::Device device, const at::Tensor& send, std::vector<Parcel> parcels,
                              at::Tensor& receive, std::vector<std::uint64_t> receive_bytes) {
  const auto self = static_cast<std::size_t>(wire.rank());
  parcels[self].bytes = receive_bytes[self] = 0;
  if (wire.shares_memory(device)) return wire.exchange_in_place(send, parcels, receive_bytes);
  // on the CPU room that is not used costs nothing, because its memory is not touched
  if (device.is_cpu()) {
    for (const int peer : wire.others()) {
      std::uint64_t& bytes = receive_bytes[static_cast<std::size_t>(peer)];
      bytes = wire.room_for(bytes);
    }
  }
  const std::uint64_t received = bytes_without(receive_bytes, wire.rank());
  reserve_on_host(receive, received, device);
  at::Tensor in = receive.narrow(0, 0, static_cast<std::int64_t>(received));
  return wire.exchange(send, parcels, in, receive_bytes);
}

Transfer exchange_with_others(Wire& wire, c10::Device device, const at::Tensor& send,
                              std::vector<std::uint64_t> send_bytes, at::Tensor& receive,
                              std::vector<std::uint64_t> receive_bytes) {
  send_bytes[static_cast<std::size_t>(wire.rank())] = 0;
  return exchange_with_others(wire, device, send, one_after_another(send_bytes), receive, std::move(receive_bytes));
}

Transfer send_to_others(Wire& wire, c10::Device device, const at::Tensor& send, std::uint64_t bytes,
                        at::Tensor& receive, std::vector<std::uint64_t> receive_bytes) {
  const std::vector<Parcel> to_all(receive_bytes.size(), {0, bytes});
  return exchange_with_others(wire, device, send, to_all, receive, std::move(receive_bytes));
}

std::uint64_t bytes_without(std::span<const std::uint64_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}) - bytes[static_cast<std::size_t>(rank)];
}

}  // namespace octavo
