// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "octavo/kernels/error.h"

namespace octavo::dc {

/// Calls `talk`, in which other ranks take part, and returns what it returns. Where one of them does something else,
/// has gone or does not answer, the Error also says what this rank was doing, as `doing` returns it.
template <class Doing, class Talk>
auto while_doing(Doing doing, Talk talk) {
  try {
    return talk();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::communication && error.code() != ErrorCode::timeout) throw;
    throw Error(error.code(), std::string(error.what()) + "; it happened in " + doing());
  }
}

}  // namespace octavo::dc
