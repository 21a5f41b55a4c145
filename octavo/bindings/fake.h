// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace octavo {

/// Of an operator that changes tensors in place or has effects alone: what it does where there is no memory, which is
/// nothing.
template <class... Arguments>
constexpr auto fake_of(void (*)(Arguments...)) {
  return +[](Arguments...) {};
}

}  // namespace octavo
