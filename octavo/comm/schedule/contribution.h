// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "octavo/codec/codec.h"
#include "octavo/codec/linear_map.h"
#include "octavo/comm/feedback/feedback.h"
#include "octavo/comm/layout.h"

namespace octavo {

/// How a tensor travels as images (LinearSum).
struct Mapping {
  const LinearMap* map = nullptr;  // null: it travels as it is
  Matrix shape = {};
  std::uint64_t step = 0;  // counted from 1
  bool error_feedback = false;
  Versioned* residual = nullptr;  // kResidual (state_store.h); null: none
  Versioned* memory = nullptr;    // kMapMemory; null: nothing is kept
};

/// One tensor of a bucket, on this rank, which sends gradient_weight*(gradient*preconditioner) +
/// momentum_weight*momentum.
struct Contribution {
  float* values;  // float32[count] on the schedule's device; in: the gradient, out: the result
  std::uint64_t count;
  const Codec *up, *down;                 // of what this rank sends to owners, and of what owners send to all
  const float* momentum = nullptr;        // float32[count], equal on all ranks; null: neither of the two
  const float* preconditioner = nullptr;  // float32[count], equal on all ranks
  float gradient_weight = 1.0F;
  float momentum_weight = 0.0F;
  std::shared_ptr<Memory> memory = Memory::none();
  /// Of the random bits by which residuals and codes are rounded. To be another one in every step, for every parameter
  /// and on every rank (rules::derive_key): with equal keys an element is rounded alike each time, which is biased.
  std::uint64_t rounding_key = 0;
  std::uint64_t shared_key = 0;  // of what all ranks draw alike: another one in every step and for every parameter
  Mapping mapping = {};
  std::optional<float> power = {};  // in place of the values' own (Outcome::power)

  /// For the range that begins at an element, of PayloadPart.
  std::uint64_t range_key(std::uint64_t first) const { return rules::derive_key(shared_key, first); }

  /// A part of a piece of it, in the message that begins at `message`.
  SentPart sent(Way way, int sender, const Piece& piece, Range part, std::uint8_t* message, c10::Device device) const {
    return {way, sender, piece.codec, piece.range, piece.part(message, part, range_key(piece.range.first)), device};
  }

  /// What is to be encoded from element `first` on, without what could not be sent before.
  EncodeInput input(std::uint64_t first) const {
    EncodeInput all{values};
    all.momentum = momentum;
    all.preconditioner = preconditioner;
    all.gradient_weight = gradient_weight;
    all.momentum_weight = momentum_weight;
    return all.from(first);
  }
};

}  // namespace octavo
