// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "octavo/device/accelerator.h"

namespace octavo {

/// What Python's callers have at hand for a device of the accelerator: an index, also as text (LOCAL_RANK), a
/// torch.device or its name, or None. A device without an index is the current one. Throws Error invalid_argument for a
/// device of another type, wrong_type for anything else. With Python's lock held.
WhichDevice index_of(const Accelerator& accelerator, const pybind11::object& asked);

}  // namespace octavo
