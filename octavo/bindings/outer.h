// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// The outer loop of local steps.
void bind_outer(pybind11::module_& m);

}  // namespace octavo
