// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/layout.h"

#include <algorithm>

namespace octavo {

namespace {

/// Ranges start at multiples of this, so that no two ranks share a byte of codes or a cache line of values.
constexpr std::uint64_t kRangeAlignment = 64;

}  // namespace

Range owned_range(std::uint64_t count, int rank, int world_size) {
  const auto world = static_cast<std::uint64_t>(world_size);
  const std::uint64_t share = (count + world - 1) / world;
  const std::uint64_t step = (share + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment;
  const std::uint64_t first = std::min(count, step * static_cast<std::uint64_t>(rank));
  return {first, std::min(step, count - first)};
}

Sent sent_part(std::uint64_t count, int rank, int world_size) {
  const Range own = owned_range(count, rank, world_size);
  return {count - own.count, own};
}

std::vector<Message> cut(std::span<const EncodedTensor> tensors, int world_size, std::uint64_t header_bytes) {
  std::vector<Message> messages(static_cast<std::size_t>(world_size));
  for (int owner = 0; owner < world_size; ++owner) {
    Message& message = messages[static_cast<std::size_t>(owner)];
    message.bytes = header_bytes;
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const auto [count, codec] = tensors[tensor];
      const Range range = owned_range(count, owner, world_size);
      if (range.count == 0) continue;
      message.pieces.push_back({tensor, range, codec, message.bytes});
      message.bytes += (codec->payload_bytes(range.count) + 3) / 4 * 4;  // the next one lies at a multiple of 4
    }
  }
  return messages;
}

}  // namespace octavo
