// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "octavo/kernels/table.h"

namespace octavo::cpu {

/// The table for OCTAVO_ISA, or for the best instruction set that this CPU has. Chosen once.
const KernelTable& table();

}  // namespace octavo::cpu
