// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/reference/table.h"
#include "octavo/kernels/step_operands.h"

namespace octavo::reference {

/// Calls step(block, count) for all blocks of a tensor.
template <class Step>
void for_step_blocks(const StepOperands& operands, std::uint64_t count, Step step) {
  for (std::uint64_t first = 0; first < count; first += kStepBlock) {
    step(operands.from(first), std::min(kStepBlock, count - first));
  }
}

/// Calls update(gradient, parameter, i), which returns whether the rule took the gradient, for the elements of a block.
template <class Update>
void update_elements(const StepOperands& block, std::uint64_t count, Update update) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float parameter = parameter_at(block, i);
    const bool taken = update(gradient_at(block, i), parameter, i);
    report(taken, block.nonfinite);
    store_parameter(block, i, parameter);
  }
}

}  // namespace octavo::reference
