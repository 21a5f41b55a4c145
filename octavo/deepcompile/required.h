// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/error.h"

namespace octavo::dc {

/// Returns what the constructor of an executor was given. Throws Error invalid_argument for a null pointer.
template <class Pointer>
Pointer required(Pointer given, const char* what) {
  if (given) return given;
  fail(ErrorCode::invalid_argument, "deepcompile.executor", "expected ", what, ", got none: an engine has all that an ",
       "executor needs from its first graph on");
}

}  // namespace octavo::dc
