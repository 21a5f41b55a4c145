// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include "octavo/kernels/error.h"

namespace octavo {

/// Runs `body`; what it throws as octavo::Error leaves as the c10 exception that torch turns into the Python class that
/// users already catch. For functions that torch's dispatcher calls.
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
      default: C10_THROW_ERROR(Error, error.what());
    }
  }
}

}  // namespace octavo
