// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/gather_shards.h"

#include <utility>

#include "octavo/comm/schedule/float_part.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"

namespace octavo {

void GatherShards::require_fit(const Codec& codec) {
  const CodecTraits& traits = codec.traits();
  if (!traits.packs && !traits.leaves_unsent && traits.keeps_magnitude && !traits.rounds_at_random) return;
  fail(ErrorCode::invalid_argument, "comm.gather_shards", "values are gathered by a codec that sends all of them in ",
       "a fixed number of bytes, rounded to the nearest code, such as bf16, int8 or fp8, not by ", codec.text());
}

Contribution GatherShards::tensor(void* values, std::uint64_t count, at::ScalarType dtype, const Codec& codec,
                                  Ownership ownership) {
  require_fit(codec);
  Contribution all{values, count, &codec, &codec};
  all.dtype = dtype;
  all.ownership = ownership;
  return all;
}

void GatherShards::begin(std::vector<Contribution> tensors, std::uint64_t digest) {
  const WaitAtEnd buffers_are_free(device_);
  tensors_ = std::move(tensors);
  codes_.begin(tensors_, digest);
  encode_own();
  wait_for_current_stream(device_);
  codes_.send();
}

void GatherShards::encode_own() {
  pieces_.clear();
  for (const Piece& piece : codes_.own_pieces()) {
    pieces_.add(tensors_[piece.tensor], {&piece, wire_.rank(), codes_.own_bytes()});
  }
  pieces_.for_each([&](const PlacedPiece& own, Range part) {
    const Contribution& tensor = tensors_[own.piece->tensor];
    const SentPart sent = tensor.sent(Way::down, own.sender, *own.piece, part, own.message, device_);
    const FloatPart values(device_, tensor, sent.first(), sent.count());
    tensor.memory->encode(sent, tensor.input(sent.first(), values.load()));
  });
}

void GatherShards::wait() { codes_.wait(); }

void GatherShards::decode_all(std::uint32_t* nonfinite) {
  const WaitAtEnd buffers_are_free(device_);
  codes_.decode_shards(nonfinite);
  tensors_.clear();  // their memory is the caller's
}

}  // namespace octavo
