// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "octavo/codec/codec.h"
#include "octavo/codec/linear_map.h"
#include "octavo/comm/feedback_memory.h"
#include "octavo/comm/message_layout.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/state/versioned.h"

namespace octavo {

/// How a tensor is sent as images (LinearSum).
struct Mapping {
  const LinearMap* map = nullptr;  // null: it is sent as it is
  Matrix shape = {};
  std::uint64_t step = 0;  // counted from 1
  bool error_feedback = false;
  Versioned* residual = nullptr;  // kResidual (state_store.h); null: none
  Versioned* memory = nullptr;    // kMapMemory; null: nothing is kept
  std::uint64_t seed = 0;         // of the run
  float momentum = 0.0F;          // MapInput::momentum
};

/// One tensor of a bucket, on this rank. The rank sends gradient_weight*(gradient*preconditioner) +
/// momentum_weight*momentum.
struct Contribution {
  /// [count] of `dtype`, on the schedule's device, at the addresses that at() returns. Holds the gradient before and
  /// the result after; where owners keep the sums to themselves, the result of the range that this rank owns.
  void* values;
  std::uint64_t count;
  const Codec *up, *down;           // the codecs of what this rank sends to owners, and of what owners make of the sums
  const float* momentum = nullptr;  // float32[count], equal on all ranks; null: neither momentum nor preconditioner
  const float* preconditioner = nullptr;  // float32[count], equal on all ranks
  float gradient_weight = 1.0F;
  float momentum_weight = 0.0F;
  std::shared_ptr<FeedbackMemory> memory = FeedbackMemory::none();
  /// The key of the random bits by which residuals and codes are rounded. It must be another one in every step, for
  /// every parameter and on every rank or, with ranks_per_host, host (rules::derive_key): with equal keys an element is
  /// rounded alike each time, which is biased.
  std::uint64_t rounding_key = 0;
  /// The share of what is owed (EF14's worker) that is added to the gradient; the rest is a part of the gradient
  /// already.
  float owed_share = 1.0F;
  std::uint64_t step = 0;        // counted from 1
  std::uint64_t shared_key = 0;  // of what all ranks draw alike; another one in every step and for every parameter
  Mapping mapping = {};
  std::optional<float> power = {};  // replaces the power of the values themselves (Outcome::power)

  at::ScalarType dtype = at::kFloat;  // FloatPart converts it; float32 for a mapped tensor
  /// Each sum is divided by the number of ranks that sent a value there, times Bucket::divisor / W (rules/hits.h). It
  /// is read where there are several ranks.
  bool over_hits = false;
  /// This rank encodes what it owns itself as it does for others, and keeps what the code leaves out. Always so over
  /// hits.
  bool codes_own = false;
  Ownership ownership = Ownership::even();
  bool owner_keeps_sum = false;  // nothing is sent down
  /// The values lie in runs of `run` elements, whose starts are `stride` elements apart. The runs are the ranges of the
  /// owners, where these do not lie one after another.
  std::uint64_t run = kUncut, stride = kUncut;
  void* at(std::uint64_t first) const {
    return static_cast<std::byte*>(values) + (first / run * stride + first % run) * c10::elementSize(dtype);
  }

  /// Calls body(first, count) for the parts of the tensor that lie together in memory.
  template <class Body>
  void for_each_run(const Body& body) const {
    for (std::uint64_t first = 0; first < count; first += run) body(first, std::min(run, count - first));
  }

  const Codec& codec(Way way) const { return way == Way::up ? *up : *down; }

  /// Returns the PayloadPart::key of the range that begins at element `first`.
  std::uint64_t range_key(std::uint64_t first) const { return rules::derive_key(shared_key, first); }

  /// Returns a part of a piece of the tensor, in the message that begins at `message`.
  SentPart sent(Way way, int sender, const Piece& piece, Range part, std::uint8_t* message, c10::Device device) const {
    return {way, sender, piece.codec, piece.range, piece.part(message, part, range_key(piece.range.first)), device};
  }

  /// Returns what is to be encoded from element `first` on, within one part of the values, without what could not be
  /// sent before. `gradient`: the part's values as float32.
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
