// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/export.h"

/// How plans write codecs, linear maps and kinds of feedback.
namespace octavo {

/// The most steps that a plan may name.
inline constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;

/// A codec as a plan writes it: a name and options, as in "int4:128:stochastic".
struct OCTAVO_API CodecText {
  std::string_view plan;  // the whole plan's text, for messages
  std::string_view name;
  std::vector<std::string_view> options;

  /// `codec` is the part of the plan that names the codec.
  static CodecText parse(std::string_view plan, std::string_view codec);

  /// Reads an option as a number. Refuses, saying `expected`, what is no number or out of bounds.
  std::uint64_t whole_number(std::string_view option, std::uint64_t least, std::uint64_t most,
                             std::string_view expected) const;
  double fraction(std::string_view option, std::string_view expected) const;  // in (0, 1]
  double number(std::string_view option, std::string_view expected) const;    // finite

  /// Throws Error invalid_argument, which says what plans there are and why this text makes none.
  [[noreturn]] void refuse(std::string_view because) const;
};

/// Returns a number in the fewest digits that are read back as the same number.
OCTAVO_API std::string shortest(double number);

}  // namespace octavo
