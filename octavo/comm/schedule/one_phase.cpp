// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/one_phase.h"

#include <utility>

#include "octavo/comm/schedule/float_part.h"
#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/schedule/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

void OnePhase::begin(Bucket bucket) {
  const SettledAtEnd buffers_are_free(device_);
  Stopwatch watch;
  bucket_ = std::move(bucket);
  up_.begin(bucket_.tensors, bucket_.digest);
  watch.lap(seconds_.encode);
}

void OnePhase::advance() {
  Stopwatch watch;
  up_.advance();
  watch.lap(seconds_.wait_up);
}

Outcome OnePhase::finish() {
  const SettledAtEnd buffers_are_free(device_);
  Stopwatch watch;
  up_.wait();
  watch.lap(seconds_.wait_up);
  const auto rank = static_cast<std::size_t>(wire_.rank());
  const Message sums = cut(bucket_.tensors, &Contribution::down, wire_.world_size(), 0)[rank];
  up_.reduce(bucket_.divisor, sums.pieces, reserve_on_host(sums_, sums.bytes, device_));
  watch.lap(seconds_.reduce);
  std::uint32_t* const nonfinite = cleared_word(nonfinite_, device_);
  deliver(sums, nonfinite);
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  bucket_ = {};  // its memory is the caller's
  return {*nonfinite == 0, up_.power(), {up_.packed().begin(), up_.packed().end()}};
}

/// Not those of power 0, whose values are zeros already.
void OnePhase::deliver(const Message& sums, std::uint32_t* nonfinite) {
  parts_.clear();
  for (const Piece& piece : sums.pieces) {
    parts_.add(device_, piece.range.count, piece.codec->traits().granule, streamed_part(bucket_.tensors[piece.tensor]));
  }
  auto* const message = sums_.mutable_data_ptr<std::uint8_t>();
  parts_.for_each(device_, 1, [&](const Parts::Part& part) {
    const Piece& piece = sums.pieces[part.piece];
    const Contribution& tensor = bucket_.tensors[piece.tensor];
    if (up_.power()[piece.tensor] == 0) return;
    const PayloadPart payload = piece.part(message, part.range, tensor.range_key(piece.range.first));
    const FloatPart result(device_, tensor, piece.range.first + part.range.first, part.range.count);
    piece.codec->decode(device_, payload, Store::assign, result.data(), nonfinite);
    result.store();
  });
}

}  // namespace octavo
