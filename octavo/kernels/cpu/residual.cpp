// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/residual.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

void decay_residual(Queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                    std::uint64_t count, Store store, rules::Residual* decayed) {
  for_each_group(count, [&](std::uint64_t group, auto size) {
    for_random_bits(key, first + group, size, [&](std::uint64_t i, std::uint32_t random) {
      const float rest = store == Store::add ? rules::from_residual(decayed[group + i]) : 0.0F;
      decayed[group + i] = rules::decayed_residual(residual[group + i], decay, rest, random);
    });
  });
}

}  // namespace octavo::cpu::OCTAVO_ISA
