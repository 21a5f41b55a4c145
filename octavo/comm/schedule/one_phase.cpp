// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/one_phase.h"

#include <algorithm>
#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/schedule/float_part.h"
#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

void OnePhase::begin(Bucket bucket) {
  const WaitAtEnd buffers_are_free(device_);
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
  const WaitAtEnd buffers_are_free(device_);
  Stopwatch watch;
  up_.wait();
  watch.lap(seconds_.wait_up);
  const auto rank = static_cast<std::size_t>(wire_.rank());
  Message sums = cut(bucket_.tensors, Way::down, wire_.world_size(), 0)[rank];
  std::uint8_t* const message = place(sums);
  up_.reduce(bucket_.divisor, sums.pieces, message);
  watch.lap(seconds_.reduce);
  std::uint32_t* const nonfinite = cleared_word(nonfinite_, device_);
  deliver(sums, message, nonfinite);
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  bucket_ = {};  // its memory is the caller's
  return {*nonfinite == 0, up_.power(), {up_.packed().begin(), up_.packed().end()}};
}

/// Returns where the sums are encoded to: where the rank's own values lie, if these are floats as the sums are.
std::uint8_t* OnePhase::place(Message& sums) {
  const bool lie_in_place = std::ranges::all_of(bucket_.tensors, [](const Contribution& tensor) {
    return tensor.dtype == at::kFloat && tensor.down == &block_coding(BlockCodec::fp32);
  });
  if (!lie_in_place || sums.pieces.empty()) return reserve_on_host(sums_, sums.bytes, device_);
  const auto address_of = [&](const Piece& piece) {  // perhaps in several allocations
    return reinterpret_cast<std::uintptr_t>(bucket_.tensors[piece.tensor].at(piece.range.first));
  };
  const std::uintptr_t first = address_of(std::ranges::min(sums.pieces, {}, address_of));
  for (Piece& piece : sums.pieces) piece.offset = address_of(piece) - first;
  return reinterpret_cast<std::uint8_t*>(first);
}

/// Decodes the sums into the tensors. Floats that are in their place already are only checked. The sum of a tensor of
/// power 0 is zero: what ranks have sent for it are residuals, which they keep.
void OnePhase::deliver(const Message& sums, std::uint8_t* message, std::uint32_t* nonfinite) {
  pieces_.clear();
  for (const Piece& piece : sums.pieces) pieces_.add(bucket_.tensors[piece.tensor], {&piece, wire_.rank(), message});
  pieces_.for_each([&](const PlacedPiece& own, Range part) {
    const Piece& piece = *own.piece;
    const Contribution& tensor = bucket_.tensors[piece.tensor];
    const FloatPart result(device_, tensor, piece.range.first + part.first, part.count);
    if (up_.power()[piece.tensor] == 0) {
      floats_at(result.data(), part.count, device_).zero_();
    } else {
      const PayloadPart payload = piece.part(own.message, part, tensor.range_key(piece.range.first));
      piece.codec->decode(device_, payload, Store::assign, result.data(), nonfinite);
    }
    result.store();
  });
}

}  // namespace octavo
