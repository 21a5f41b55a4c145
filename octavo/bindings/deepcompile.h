// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

void bind_deepcompile(pybind11::module_& m);

}  // namespace octavo
