// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

/// The parts of octavo._C, each in a file of its name.
namespace octavo {

/// Arena, tensors in managed memory: where optimizers keep state that is larger than a device.
void bind_arena(pybind11::module_& m);

/// What autograd knows about a parameter and torch does not show in Python.
void bind_autograd(pybind11::module_& m);

/// Plan, and codecs for single tensors.
void bind_codecs(pybind11::module_& m);

/// The hooks of DDP and FSDP2, memory that ranks share, what ranks send without a compressor, and all_reduce.
void bind_comm(pybind11::module_& m);

/// Compressor.
void bind_compressor(pybind11::module_& m);

/// ZeRO's engine.
void bind_deepcompile(pybind11::module_& m);

/// HostMemory, HostEvent and page-locked memory: what Python's accelerators need from the host and torch does not have.
void bind_host(pybind11::module_& m);

/// Which steps 0/1 Adam sends.
void bind_optim(pybind11::module_& m);

/// The outer loop of local steps.
void bind_outer(pybind11::module_& m);

/// What octavo.sycl is made of: the device's registration and its figures.
void bind_sycl(pybind11::module_& m);

}  // namespace octavo
