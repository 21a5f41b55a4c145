// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "octavo/kernels/error.h"

namespace octavo::dc {

/// Calls `exchange`, in which other ranks take part, and returns what it returns. Where one of them does something
/// else, has gone or does not answer, the Error also says where this rank was, as `context` returns it.
template <class Context, class Exchange>
auto with_context(Context context, Exchange exchange) {
  try {
    return exchange();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::communication && error.code() != ErrorCode::timeout) throw;
    throw Error(error.code(), std::string(error.what()) + "; it happened in " + context());
  }
}

}  // namespace octavo::dc
