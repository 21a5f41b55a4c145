// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The reference back end: each rule applied one element at a time. It defines what the others must return.
namespace octavo::reference {

#include "octavo/kernels/declarations.inc"

extern const KernelTable table;

}  // namespace octavo::reference
