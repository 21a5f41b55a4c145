// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/messages.h"

#include <cstring>
#include <numeric>

#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

at::Tensor prefix(const at::Tensor& buffer, std::uint64_t bytes) {
  return buffer.narrow(0, 0, static_cast<std::int64_t>(bytes));
}

}  // namespace

void require_digest(std::uint64_t digest, const std::uint8_t* message, int sender, int receiver) {
  MessageHeader header;
  std::memcpy(&header, message, sizeof header);
  if (header.digest == digest) return;
  fail(ErrorCode::communication, "comm.schedule", "rank ", receiver,
       " was sent a bucket of another step, plan or model ", "by rank ", sender,
       ": give all ranks the same plan, model and checkpoint; the process group and its handles ", "must be rebuilt");
}

std::vector<Message> cut(std::span<const Contribution> tensors, const Codec* Contribution::* codec, int world_size,
                         std::uint64_t header_bytes) {
  std::vector<EncodedTensor> encoded;
  for (const Contribution& tensor : tensors) encoded.push_back({tensor.count, tensor.*codec});
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
  const std::uint64_t received = bytes_without(receive_bytes, wire.rank());
  reserve_on_host(receive, received, device);
  at::Tensor out = prefix(send, bytes_without(send_bytes, wire.rank())), in = prefix(receive, received);
  return wire.exchange(out, send_bytes, in, receive_bytes);
}

std::uint64_t bytes_without(std::span<const std::uint64_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}) - bytes[static_cast<std::size_t>(rank)];
}

}  // namespace octavo
