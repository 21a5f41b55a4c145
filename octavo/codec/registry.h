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

/// Codecs by the names that plans call them.
namespace octavo {

/// A codec as a plan writes it: a name and options, as in "int4:128:stochastic".
struct OCTAVO_API CodecText {
  std::string_view plan;  // the whole plan's text, for messages
  std::string_view name;
  std::vector<std::string_view> options;

  /// `codec`: the part of the plan that names it.
  static CodecText parse(std::string_view plan, std::string_view codec);

  /// An option as a number; refuses what is none or out of bounds, saying `expected`.
  std::uint64_t whole_number(std::string_view option, std::uint64_t least, std::uint64_t most,
                             std::string_view expected) const;
  double fraction(std::string_view option, std::string_view expected) const;  // in (0, 1]
  double number(std::string_view option, std::string_view expected) const;    // finite

  /// Throws Error invalid_argument: what plans there are, and why this text makes none.
  [[noreturn]] void refuse(std::string_view because) const;
};

/// A number in the fewest digits that are read back as the same.
std::string shortest(double number);

/// Makes the codec that a text asks for, or refuses it.
using CodecFactory = std::function<CodecPtr(const CodecText& text)>;

/// Makes `name` a codec of plans, in this process: all ranks of a job must do so. Thread-safe. Throws Error
/// invalid_argument where there is a codec of that name, or where it is not made of letters, digits and '-'.
OCTAVO_API void register_codec(const std::string& name, CodecFactory factory);

OCTAVO_API CodecPtr make_codec(const CodecText& text);
/// Null where there is no linear map of that name.
OCTAVO_API LinearMapPtr make_map(const CodecText& text);
/// All names of codecs, those of Octavo's own first, then of maps.
OCTAVO_API std::vector<std::string> codec_names();

}  // namespace octavo
