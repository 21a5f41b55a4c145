// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// What octavo.sycl is made of, in octavo._C: the device's registration and its figures.
void bind_sycl(pybind11::module_& m);

}  // namespace octavo
