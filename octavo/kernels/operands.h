// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/counter_random.h"
#include "octavo/rules/residual.h"
#include "octavo/rules/sent_value.h"

/// What kernels read and write, and functions for one element of it. Compiled for the host and for devices.
namespace octavo {

/// What is encoded, by rules/sent_value.h. It is a rank's contribution, gradient_weight*gradient or, with a momentum,
/// gradient_weight*(gradient*preconditioner) + momentum_weight*momentum. At the owner it is the sum of this and
/// `others`, what the other ranks sent, times sum_weight. The residual is added to it. Arrays have one element per
/// value; null: there is none.
struct EncodeInput {
  const float* gradient;
  const rules::Residual* residual = nullptr;
  const float* momentum = nullptr;
  const float* preconditioner = nullptr;  // not null where momentum is not
  const float* others = nullptr;
  float gradient_weight = 1.0F;
  float momentum_weight = 0.0F;
  float sum_weight = 1.0F;         // used where there are `others`
  std::uint64_t rounding_key = 0;  // key of the random bits by which residuals, and codes, are rounded
  std::uint64_t first = 0;         // number of the first element, by which elements draw them
  bool stochastic = false;         // codes are rounded without bias, by codecs that dither
  /// The receivers' estimate of the values, where the difference to it is encoded. It is for codecs that need it
  /// (CodecTraits), not for kernels.
  const float* estimate = nullptr;

  OCTAVO_RULE EncodeInput from(std::uint64_t offset) const {
    EncodeInput rest = *this;
    rest.gradient += offset;
    if (residual) rest.residual += offset;
    if (momentum) rest.momentum += offset;
    if (preconditioner) rest.preconditioner += offset;
    if (others) rest.others += offset;
    if (estimate) rest.estimate += offset;
    rest.first += offset;
    return rest;
  }
};

/// A payload: one float scale per block (where the codec has scales), and the codes, byte-aligned at each block.
struct Payload {
  float* scales;
  std::uint8_t* codes;
};

/// How results are written. `uncached` is `assign` for results that nobody reads soon: large results may then bypass
/// the caches, which saves reading what is overwritten.
enum class Store { assign, add, uncached };

/// Returns the value that is encoded at an index.
OCTAVO_RULE float value_at(const EncodeInput& in, std::uint64_t i) {
  float value = in.momentum ? rules::contribution(in.gradient_weight, in.gradient[i], in.preconditioner[i],
                                                  in.momentum_weight, in.momentum[i])
                            : rules::contribution(in.gradient_weight, in.gradient[i]);
  if (in.others) value = rules::sum_of(value, in.others[i], in.sum_weight);
  return in.residual ? value + rules::from_residual(in.residual[i]) : value;
}

/// The purposes for which keys are derived from EncodeInput::rounding_key, so that each rounding draws bits of its own.
inline constexpr std::uint64_t kCodesPurpose = 2;
inline constexpr std::uint64_t kPackedOwedPurpose = 3;  // what is owed, in 8 bits
inline constexpr std::uint64_t kSentSharePurpose = 4;   // the share of a residual that is added to what is sent
inline constexpr std::uint64_t kKeptSharePurpose = 5;   // the share that stays
/// The same for Contribution::rounding_key, from which the two ways, and the rounds of a linear map, derive keys by
/// their numbers, from 0 on.
inline constexpr std::uint64_t kMapResidualPurpose = 64;  // what a map leaves over

/// Returns the key of the random bits by which codes are rounded.
OCTAVO_RULE std::uint64_t dither_key(const EncodeInput& in) {
  return rules::derive_key(in.rounding_key, kCodesPurpose);
}

/// Returns the residual of the value at an index: what its code leaves over, rounded at random.
OCTAVO_RULE rules::Residual residual_at(const EncodeInput& in, std::uint64_t i, float left_over) {
  return rules::to_residual(left_over, rules::random_bits(in.rounding_key, in.first + i));
}

OCTAVO_RULE void store(Store how, float value, float& out) { out = how == Store::add ? out + value : value; }

}  // namespace octavo
