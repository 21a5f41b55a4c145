// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/message_layout.h"

#include "octavo/kernels/round_up.h"

namespace octavo {

std::vector<Message> cut(std::span<const EncodedTensor> tensors, int world_size, std::uint64_t header_bytes) {
  std::vector<Message> messages(static_cast<std::size_t>(world_size));
  for (int owner = 0; owner < world_size; ++owner) {
    Message& message = messages[static_cast<std::size_t>(owner)];
    message.bytes = header_bytes;
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const auto [count, codec, ownership] = tensors[tensor];
      const Range range = owned_range(count, owner, world_size, ownership);
      if (range.count == 0) continue;
      message.pieces.push_back({tensor, range, codec, message.bytes});
      message.bytes += whole_words(codec->payload_bytes(range.count));
    }
  }
  return messages;
}

}  // namespace octavo
