// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

namespace octavo {

/// Returns the least multiple of `multiple`, which is above 0, that is not below `value`, of at least 0. The sum of
/// both must be one that T can hold.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace octavo
