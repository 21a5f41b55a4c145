// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/residual.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void decay_residual(Queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                    std::uint64_t count, Store store, rules::Residual* decayed) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float rest = store == Store::add ? rules::from_residual(decayed[i]) : 0.0F;
    decayed[i] = rules::decayed_residual(residual[i], decay, rest, rules::random_bits(key, first + i));
  }
}

}  // namespace octavo::reference
