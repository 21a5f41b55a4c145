// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
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
  std::uint64_t seed = 0;         // of the run
  float momentum = 0.0F;          // MapInput::momentum
};

/// One tensor of a bucket, on this rank, which sends gradient_weight*(gradient*preconditioner) +
/// momentum_weight*momentum.
struct Contribution {
  /// [count] of `dtype` on the schedule's device, where at() says; in: the gradient, out: the result, or where owners
  /// keep the sums to themselves that of the range that this rank owns.
  void* values;
  std::uint64_t count;
  const Codec *up, *down;                 // of what this rank sends to owners, and of what owners make of the sums
  const float* momentum = nullptr;        // float32[count], equal on all ranks; null: neither of the two
  const float* preconditioner = nullptr;  // float32[count], equal on all ranks
  float gradient_weight = 1.0F;
  float momentum_weight = 0.0F;
  std::shared_ptr<Memory> memory = Memory::none();
  /// Of the random bits by which residuals and codes are rounded. To be another one in every step, for every parameter
  /// and on every rank (rules::derive_key): with equal keys an element is rounded alike each time, which is biased.
  std::uint64_t rounding_key = 0;
  /// Of what is owed (EF14's worker), the share that is added to the gradient, of which the rest is a part already.
  float owed_share = 1.0F;
  std::uint64_t step = 0;        // counted from 1
  std::uint64_t shared_key = 0;  // of what all ranks draw alike: another one in every step and for every parameter
  Mapping mapping = {};
  std::optional<float> power = {};  // in place of the values' own (Outcome::power)

  at::ScalarType dtype = at::kFloat;  // what FloatPart converts; of a mapped tensor float32
  /// Each sum is divided by the number of ranks that sent a value there, times Bucket::divisor / W (rules/hits.h). Read
  /// where there are several ranks.
  bool over_hits = false;
  /// What a rank owns itself it encodes as it does for others, and keeps what the code leaves out. Always over hits.
  bool codes_own = false;
  Ownership ownership = Ownership::even();
  bool owner_keeps_sum = false;  // nothing is sent down
  /// The values lie in parts of `share` elements, whose starts are `stride` elements apart: the ranges of the owners,
  /// where these do not lie one after another.
  std::uint64_t share = kUncut, stride = kUncut;
  void* at(std::uint64_t first) const {
    return static_cast<std::byte*>(values) + (first / share * stride + first % share) * c10::elementSize(dtype);
  }

  /// For the range that begins at an element, of PayloadPart.
  std::uint64_t range_key(std::uint64_t first) const { return rules::derive_key(shared_key, first); }

  /// A part of a piece of it, in the message that begins at `message`.
  SentPart sent(Way way, int sender, const Piece& piece, Range part, std::uint8_t* message, c10::Device device) const {
    return {way, sender, piece.codec, piece.range, piece.part(message, part, range_key(piece.range.first)), device};
  }

  /// What is to be encoded from element `first` on, in its part, without what could not be sent before; `gradient`: the
  /// part's values as float32.
  EncodeInput input(std::uint64_t first, const float* gradient) const {
    EncodeInput rest{gradient};
    rest.momentum = momentum ? momentum + first : nullptr;
    rest.preconditioner = preconditioner ? preconditioner + first : nullptr;
    rest.gradient_weight = gradient_weight;
    rest.momentum_weight = momentum_weight;
    rest.first = first;
    return rest;
  }
};

}  // namespace octavo
