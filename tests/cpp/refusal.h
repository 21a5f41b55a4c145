// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "octavo/kernels/error.h"

namespace octavo {

/// Returns the sentence with which `body` is refused. The error must be of the category `code`.
template <class Body>
std::string refusal_of(Body body, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "it did not throw";
}

}  // namespace octavo
