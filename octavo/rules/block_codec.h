// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/compensated_sum.h"
#include "octavo/rules/float_bits.h"
#include "octavo/rules/lane_sum.h"
#include "octavo/rules/sign_bits.h"

/// Block codecs: values are cut into blocks, and a block is sent as one float32 scale (where the codec has scales) and
/// a code of some bits for each element. A codec is a rule, a struct with these members:
///
///   kBits            bits of a code: 1 to 8, 16 or 32
///   kHasScale        whether blocks have scales; without them, blocks only divide the work
///   kGreatest        where there are scales: a code of the greatest magnitude
///   kLeavesError     whether feeding back what the codes lose makes sense
///   kKeepsMagnitude  false where decoded values are votes: an average of them would mean nothing
///   kBlock           elements of a block by default
///   Statistic        of a block's magnitudes, from which its scale is made: LargestMagnitude or MeanMagnitude
///   Scale            `sent` is sent to other ranks, the rest helps the encoder
///   scale(statistic), code(value, scale, dither), decoded(code, sent)
///   kDithers         whether code() adds the dither before it rounds; a dither is in units of a code, and either 0 or
///                    uniform between -1/2 and 1/2, which rounds without bias
///
/// A block whose statistic is not is_sendable() is sent as zeros with a scale of NaN. Rules with scales therefore see
/// finite values only, and the codes that they make decode to finite values. block_codecs.h lists the rules. Each back
/// end has one loop for all of them.
namespace octavo::rules {

// How the codes of a block are laid out in its bytes. The first element's code always comes first. With 4 bits, element
// 2i is the high nibble of byte i, and an unused last nibble is 0. Codes of 8, 16 or 32 bits are little-endian words.
// Codes of other widths are in planes, one for each bit of a code, the highest bit first; a plane is packed as sign
// bits are (sign_bits.h).

enum class Layout { planes, nibbles, words };

template <unsigned kBits>
inline constexpr Layout kLayout = kBits == 4       ? Layout::nibbles
                                  : kBits % 8 == 0 ? Layout::words
                                                   : Layout::planes;

/// Returns the bytes of the codes of a block of `count` elements.
template <unsigned kBits>
OCTAVO_RULE constexpr std::uint64_t code_bytes(std::uint64_t count) {
  if (kLayout<kBits> == Layout::nibbles) return count / 2 + count % 2;
  return kLayout<kBits> == Layout::words ? kBits / 8 * count : kBits * packed_sign_bytes(count);
}

/// A block's elements are summarized in chunks of this size, in order.
inline constexpr std::uint64_t kSummaryChunk = 4096;

/// The largest magnitude of a block. The summary of a chunk is its largest magnitude_bits.
struct LargestMagnitude {
  using Summary = std::uint32_t;
  std::uint32_t largest = 0;
  OCTAVO_RULE void add(Summary chunk) { largest = chunk > largest ? chunk : largest; }
  /// Returns the largest magnitude: infinite or a NaN where any element is.
  OCTAVO_RULE float value(std::uint64_t) const { return from_bits(largest); }
  /// Returns an upper bound of the magnitudes; only rounding may put an element above it.
  OCTAVO_RULE float bound() const { return from_bits(largest); }
};

/// The mean magnitude of a block. The summary of a chunk is the lane_sum of its magnitudes.
struct MeanMagnitude {
  using Summary = float;
  CompensatedSum sum;
  OCTAVO_RULE void add(Summary chunk) { sum.add(chunk); }
  /// Returns the mean over `count` elements: a NaN where any element is infinite or a NaN, or where the sum overflows.
  OCTAVO_RULE float value(std::uint64_t count) const { return sum.value() / static_cast<float>(count); }
  OCTAVO_RULE float bound() const { return sum.value(); }
};

/// Whether a block with this statistic can be sent. A larger statistic counts as infinite, because a rule may double
/// it.
OCTAVO_RULE bool is_sendable(float statistic) { return magnitude_bits(statistic) < to_bits(0x1p126F); }

/// Whether it is certain that to_residual_of_small() may round what the codes of a block with this bound leave over.
OCTAVO_RULE bool leaves_small(float bound) { return bound < 0x1p120F; }

/// Returns the scale with which a block's codes are made. Where the statistic is not sendable, it is the scale of a
/// block of zeros, because zeros are then sent.
template <class Rule>
OCTAVO_RULE typename Rule::Scale used_scale(float statistic) {
  return Rule::scale(is_sendable(statistic) ? statistic : 0.0F);
}

/// Returns the scale that is sent: a NaN where the statistic is not sendable.
template <class Rule>
OCTAVO_RULE float sent_scale(float statistic) {
  return is_sendable(statistic) ? Rule::scale(statistic).sent : from_bits(kQuietNaNBits);
}

/// Whether all codes decode to finite values with this scale. They do with the scales that sent_scale() makes of
/// sendable statistics.
template <class Rule>
OCTAVO_RULE bool has_numbers(float scale) {
  return is_finite(Rule::decoded(Rule::kGreatest, scale));
}

/// Stands in for a dither where codes are rounded to nearest.
struct NoDither {};
OCTAVO_RULE float operator+(float value, NoDither) { return value; }

/// Returns the dither that 16 random bits make.
OCTAVO_RULE float dither(std::uint32_t random) {
  return (static_cast<float>(static_cast<std::int32_t>(random)) + 0.5F) * 0x1p-16F - 0.5F;
}

/// Returns what the code of a value leaves over. `value`: what the code was made of, so 0 in a block that is not
/// sendable.
template <class Rule>
OCTAVO_RULE float left_over(float value, std::uint32_t code, const typename Rule::Scale& scale) {
  if constexpr (Rule::kHasScale) {
    return value - Rule::decoded(code, scale.sent);
  } else {
    return is_finite(value) ? value - Rule::decoded(code, 1.0F) : 0.0F;
  }
}

}  // namespace octavo::rules
