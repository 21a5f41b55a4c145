// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// HostMemory, HostEvent and page-locked memory: what Python's accelerators need of the host and torch does not have.
void bind_host(pybind11::module_& m);

}  // namespace octavo
