// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

/// Plan, its codecs, Compressor with the DDP hook, and all_reduce.
void bind_comm(pybind11::module_& m);

}  // namespace octavo
