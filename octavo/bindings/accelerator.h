// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// Accelerator, HostEvent and page-locked memory.
void bind_accelerator(pybind11::module_& m);

}  // namespace octavo
