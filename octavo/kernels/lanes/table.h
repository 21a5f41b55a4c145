// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The functions of KernelTable for a back end of lanes (device_backend.h).
namespace octavo::lanes {

#include "octavo/kernels/declarations.inc"

}  // namespace octavo::lanes
