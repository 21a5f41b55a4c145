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

/// Returns the Python class of an Error that pybind11's functions throw.
inline PyObject* python_class(ErrorCode code) {
  switch (code) {  // each code, so that the compiler reports one that is missing here
    case ErrorCode::invalid_argument: return PyExc_ValueError;
    case ErrorCode::wrong_type: return PyExc_TypeError;
    case ErrorCode::unsupported: return PyExc_NotImplementedError;
    case ErrorCode::timeout: return PyExc_TimeoutError;
    case ErrorCode::out_of_memory: return PyExc_MemoryError;
    case ErrorCode::communication:
    case ErrorCode::internal: break;
  }
  return PyExc_RuntimeError;
}

/// Runs `body`. Turns an octavo::Error that it throws into the c10 exception that torch turns into the Python class
/// that users already catch: that of python_class(), and torch.OutOfMemoryError for out_of_memory. For functions that
/// torch's dispatcher, or its autograd engine, calls.
template <class Body>
auto as_torch_error(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::invalid_argument: C10_THROW_ERROR(ValueError, error.what());
      case ErrorCode::wrong_type: C10_THROW_ERROR(TypeError, error.what());
      case ErrorCode::unsupported: C10_THROW_ERROR(NotImplementedError, error.what());
      case ErrorCode::timeout: throw PythonTimeout(error.what());
      case ErrorCode::out_of_memory: C10_THROW_ERROR(OutOfMemoryError, error.what());
      case ErrorCode::communication:
      case ErrorCode::internal: break;
    }
    C10_THROW_ERROR(Error, error.what());
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
