// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "octavo/kernels/error.h"

namespace octavo {

/// Python's TimeoutError, thrown through torch's code. Torch has no exception of its own for it.
struct PythonTimeout : torch::PyTorchError {
  using PyTorchError::PyTorchError;
  PyObject* python_type() override { return PyExc_TimeoutError; }
};

/// Runs `body`. Turns an octavo::Error that it throws into the c10 exception that torch turns into the Python class
/// that users already catch. For functions that torch's dispatcher, or its autograd engine, calls.
template <class Body>
auto as_torch_error(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::invalid_argument: C10_THROW_ERROR(ValueError, error.what());
      case ErrorCode::wrong_type: C10_THROW_ERROR(TypeError, error.what());
      case ErrorCode::unsupported: C10_THROW_ERROR(NotImplementedError, error.what());
      case ErrorCode::out_of_memory: C10_THROW_ERROR(OutOfMemoryError, error.what());
      case ErrorCode::timeout: throw PythonTimeout(error.what());
      default: C10_THROW_ERROR(Error, error.what());
    }
  }
}

/// Returns the same exception for something that was thrown.
inline std::exception_ptr torch_error_of(const std::exception_ptr& thrown) {
  try {
    as_torch_error([&] { std::rethrow_exception(thrown); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace octavo
