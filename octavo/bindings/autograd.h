// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// What autograd knows of a parameter and torch does not show in Python.
void bind_autograd(pybind11::module_& m);

}  // namespace octavo
