// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

/// Texts of plans, which separators cut into pieces.
namespace octavo {

struct SplitText {
  std::string_view first;
  std::string_view rest;  // from the separator on; empty where there is none
};
inline SplitText split(std::string_view text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  return {text.substr(0, end), text.substr(end)};
}

/// Calls visit(piece) for all pieces of "+piece+piece".
template <class Visit>
void for_each_piece(std::string_view rest, char separator, Visit visit) {
  while (!rest.empty()) {
    const SplitText pieces = split(rest.substr(1), separator);
    visit(pieces.first);
    rest = pieces.rest;
  }
}

}  // namespace octavo
