// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/codec/linear_map.h"
#include "octavo/export.h"

/// Finds codecs by the names that plans use for them.
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

/// Makes the codec that a text asks for, or refuses it.
using CodecFactory = std::function<CodecPtr(const CodecText& text)>;

/// Makes `name` the name of a codec in plans, in this process; all ranks of a job must do so. A later registration of
/// the name takes the place of the first one, so that a library may be built and loaded again; plans that exist keep
/// their codecs. A library that has registered a codec must stay loaded. Thread-safe. Throws Error invalid_argument for
/// a name of Octavo's own codecs, and for one that is not made of letters, digits and '-'.
OCTAVO_API void register_codec(const std::string& name, CodecFactory factory);

OCTAVO_API CodecPtr make_codec(const CodecText& text);
/// Makes the linear map that a text asks for; null where there is none of that name.
OCTAVO_API LinearMapPtr make_map(const CodecText& text);
/// Returns all names: of Octavo's own codecs, then of other codecs, then of maps.
OCTAVO_API std::vector<std::string> codec_names();

}  // namespace octavo
