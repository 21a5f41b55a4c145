// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/codec.h"

namespace octavo::conformance {

namespace {

std::uint64_t code_bytes(std::uint64_t count) { return 4 * count; }

TEST(Fp32, EqualsReference) { expect_codec_conforms({&KernelTable::fp32, code_bytes, false, {1U << 18}}); }

}  // namespace

}  // namespace octavo::conformance
