// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

namespace octavo {

/// Returns `value`, of at least 0, divided by `by`, which is above 0, rounded up.
template <std::integral T>
constexpr T divide_up(T value, std::type_identity_t<T> by) {
  return value / by + (value % by != 0);
}

/// Returns the least multiple of `multiple`, which is above 0, that is not below `value`, of at least 0. It must be one
/// that T can hold.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace octavo
