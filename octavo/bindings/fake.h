// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace octavo {

/// Returns the fake kernel of an operator that changes tensors in place or has only effects: without memory it does
/// nothing.
template <class... Arguments>
constexpr auto fake_of(void (*)(Arguments...)) {
  return +[](Arguments...) {};
}

}  // namespace octavo
