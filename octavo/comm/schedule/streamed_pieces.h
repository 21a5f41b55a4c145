// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/schedule/parts.h"

namespace octavo {

/// A piece of a message: which rank sends it, and where the message begins.
struct PlacedPiece {
  const Piece* piece;
  int sender;
  std::uint8_t* message;
};

/// The pieces of messages that are encoded or decoded in one pass, part by part (Parts). The object keeps its memory.
class StreamedPieces {
 public:
  explicit StreamedPieces(c10::Device device) : device_(device) {}

  void clear() {
    placed_.clear();
    parts_.clear();
  }
  /// Adds a piece of `tensor`, which is cut at multiples of its codec's granule and of `unit` elements. The piece must
  /// stay until for_each() is done.
  void add(const Contribution& tensor, const PlacedPiece& placed, std::uint64_t unit = 1) {
    const Piece& piece = *placed.piece;
    placed_.push_back(placed);
    parts_.add(device_, piece.range.count, std::lcm(piece.codec->traits().granule, unit), part_size(tensor));
  }
  /// Calls body(placed, part) for all parts, as Parts::for_each() does. `part`: in elements of the piece's own range.
  template <class Body>
  void for_each(const Body& body) const {
    parts_.for_each(device_, 1, [&](const Parts::Part& part) { body(placed_[part.piece], part.range); });
  }

 private:
  /// Returns how many elements a part on the CPU has: as many as Parts says, or as many as L2 holds of a copy
  /// (FloatPart).
  static std::uint64_t part_size(const Contribution& tensor) {
    constexpr std::uint64_t kConverted = 1U << 16;
    return tensor.dtype == at::kFloat ? Parts::kStreamed : kConverted;
  }

  c10::Device device_;
  std::vector<PlacedPiece> placed_;
  Parts parts_;
};

}  // namespace octavo
