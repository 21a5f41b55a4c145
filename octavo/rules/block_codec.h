// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/compensated_sum.h"
#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"
#include "octavo/rules/sign_bits.h"

/// Block codecs: values are cut into blocks, a block is sent as one float32 scale (where the codec has scales) and a
/// code of some bits for each element. A codec is a rule, a struct of
///
///   kBits            of a code, 1 to 8, 16 or 32
///   kHasScale        without one, blocks only cut the work
///   kGreatest        where there is a scale, a code of which no other's magnitude is greater
///   kLeavesError     whether feeding back what the codes lose makes sense
///   kKeepsMagnitude  false where decoded values are votes: an average of them would mean nothing
///   kBlock           elements of a block where nothing else is said
///   Statistic        of a block's magnitudes, of which its scale is made: LargestMagnitude or MeanMagnitude
///   Scale            `sent` crosses the wire, the rest helps the encoder
///   scale(statistic), code(value, scale, dither), decoded(code, sent)
///   kDithers         whether code() adds the dither before it rounds, in units of a code: 0, or uniform between -1/2
///                    and 1/2, which rounds without bias
///
/// A block whose statistic is not is_sendable() is sent as zeros under a scale of NaN: rules with scales meet finite
/// values alone, and what they decode is finite.
/// block_codecs.h lists them. Each back end has one loop that serves them all.
namespace octavo::rules {

// How the codes of a block lie in its bytes; the first element's always come first. 4 bits: element 2i is the high
// nibble of byte i, an unused last nibble is 0. 8, 16, 32 bits: little-endian words. Other widths: a plane for each bit
// of a code, the highest first, packed as sign bits are (sign_bits.h).

enum class Layout { planes, nibbles, words };

template <unsigned kBits>
inline constexpr Layout kLayout = kBits == 4       ? Layout::nibbles
                                  : kBits % 8 == 0 ? Layout::words
                                                   : Layout::planes;

/// Of one block.
template <unsigned kBits>
OCTAVO_RULE constexpr std::uint64_t code_bytes(std::uint64_t count) {
  if (kLayout<kBits> == Layout::nibbles) return count / 2 + count % 2;
  return kLayout<kBits> == Layout::words ? kBits / 8 * count : kBits * packed_sign_bytes(count);
}

/// A block's elements are summarized in chunks of this size, in order.
inline constexpr std::uint64_t kSummaryChunk = 4096;

/// A chunk's summary: the largest magnitude_bits.
struct LargestMagnitude {
  using Summary = std::uint32_t;
  std::uint32_t largest = 0;
  OCTAVO_RULE void add(Summary chunk) { largest = chunk > largest ? chunk : largest; }
  /// Infinite or NaN where any element is.
  OCTAVO_RULE float value(std::uint64_t) const { return from_bits(largest); }
  /// What no element is above, but for rounding.
  OCTAVO_RULE float bound() const { return from_bits(largest); }
};

/// A chunk's summary: the lane_sum of its magnitudes.
struct MeanMagnitude {
  using Summary = float;
  CompensatedSum sum;
  OCTAVO_RULE void add(Summary chunk) { sum.add(chunk); }
  /// Infinite or NaN where any element is, or where the sum overflows.
  OCTAVO_RULE float value(std::uint64_t count) const { return sum.value() / static_cast<float>(count); }
  OCTAVO_RULE float bound() const { return sum.value(); }
};

/// What is larger is taken for infinite: a rule may double it.
OCTAVO_RULE bool is_sendable(float statistic) { return magnitude_bits(statistic) < to_bits(0x1p126F); }

/// Whether the codes of a block surely leave over what is to_residual_of_small().
OCTAVO_RULE bool leaves_small(float bound) { return bound < 0x1p120F; }

/// The scale that a block's codes are made with: where it is not sendable, the one of zeros, which are then sent.
template <class Rule>
OCTAVO_RULE typename Rule::Scale used_scale(float statistic) {
  return Rule::scale(is_sendable(statistic) ? statistic : 0.0F);
}

/// The scale that crosses the wire.
template <class Rule>
OCTAVO_RULE float sent_scale(float statistic) {
  return is_sendable(statistic) ? Rule::scale(statistic).sent : from_bits(kQuietNaNBits);
}

/// Whether all codes under a scale are numbers. Those that sent_scale() makes of what is sendable are.
template <class Rule>
OCTAVO_RULE bool has_numbers(float scale) {
  return is_finite(Rule::decoded(Rule::kGreatest, scale));
}

/// In place of a dither where codes are rounded to nearest.
struct NoDither {};
OCTAVO_RULE float operator+(float value, NoDither) { return value; }

/// Of 16 random bits.
OCTAVO_RULE float dither(std::uint32_t random) {
  return (static_cast<float>(static_cast<std::int32_t>(random)) + 0.5F) * 0x1p-16F - 0.5F;
}

/// What the codes of a block leave over of one of its values, which is what the codes are of.
template <class Rule>
OCTAVO_RULE float left_over(float value, std::uint32_t code, const typename Rule::Scale& scale) {
  if constexpr (Rule::kHasScale) {
    return value - Rule::decoded(code, scale.sent);
  } else {
    return is_finite(value) ? value - Rule::decoded(code, 1.0F) : 0.0F;
  }
}

}  // namespace octavo::rules
