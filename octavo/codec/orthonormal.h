// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo {

/// Makes `vectors` rows of `length` floats orthonormal, in place, on the host. The method is Gram-Schmidt, twice, in
/// double and in an order that is the same on every machine. A row that depends on those before it is drawn anew, from
/// `key`: any direction serves a projection. Where a value is not finite all become NaN. vectors <= length.
void make_orthonormal(float* rows, std::uint64_t vectors, std::uint64_t length, std::uint64_t key);

}  // namespace octavo
