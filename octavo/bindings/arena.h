// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// Arena, tensors in managed memory: where optimizers keep state that is larger than a device.
void bind_arena(pybind11::module_& m);

}  // namespace octavo
