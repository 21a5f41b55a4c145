// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

namespace octavo::cpu {

/// Returns the table for OCTAVO_ISA or, where that is not set, for the best instruction set that this CPU has. It is
/// chosen once.
const KernelTable& table();

}  // namespace octavo::cpu
