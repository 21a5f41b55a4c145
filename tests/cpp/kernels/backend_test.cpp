// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/backend.h"

#include <gtest/gtest.h>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

ErrorCode code_of(std::string_view name) {
  try {
    backend(name);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[kernels.backend]"), std::string::npos) << error.what();
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(Backend, AnUnknownNameIsRefused) { EXPECT_EQ(code_of("tpu"), ErrorCode::invalid_argument); }

TEST(Backend, EveryBackendIsThereOrSaysWhyNot) {
  for (const BackendStatus& status : backends()) {
    EXPECT_FALSE(status.reason.empty()) << status.name;
    EXPECT_EQ(backend_status(status.name).reason, status.reason);
    if (status.available) {
      EXPECT_NE(backend(status.name).pack_sign_bits, nullptr);
    } else {
      EXPECT_EQ(code_of(status.name), ErrorCode::unsupported);
    }
  }
}

TEST(Backend, AnUnknownNameIsOfOneThatIsMissing) {
  EXPECT_FALSE(backend_status("tpu").available);
  EXPECT_EQ(backend_status("tpu").reason, "Octavo has no such back end");
}

}  // namespace

}  // namespace octavo
