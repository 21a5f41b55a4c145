// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/conformance/conformance.h"

/// A block codec under test, and memory for what it writes.
namespace octavo::conformance {

/// A codec as its rule describes it.
struct CodecUnderTest {
  BlockCodec codec;
  const char* name;
  std::uint64_t (*code_bytes)(std::uint64_t count);  // the bytes of one block's codes
  bool has_scale, leaves_error, dithers;

  std::uint64_t blocks(std::uint64_t count, std::uint64_t block) const {
    return has_scale ? count / block + (count % block != 0) : 0;
  }
  std::uint64_t bytes(std::uint64_t count, std::uint64_t block) const {
    return count / block * code_bytes(block) + code_bytes(count % block);
  }
};

template <BlockCodec codec>
CodecUnderTest under_test(const char* name) {
  using Rule = RuleOf<codec>::type;
  return {codec, name, rules::code_bytes<Rule::kBits>, Rule::kHasScale, Rule::kLeavesError, Rule::kDithers};
}

struct Encoded {
  Guarded<float> scales;
  Guarded<std::uint8_t> codes;
  Guarded<rules::Residual> next;
  Encoded(std::uint64_t blocks, std::uint64_t bytes, std::uint64_t count, std::uint64_t offset)
      : scales(blocks, offset), codes(bytes, offset), next(count, offset) {}
  Payload payload() { return {scales.data(), codes.data()}; }
};

/// Returns every block codec.
inline std::vector<CodecUnderTest> all_codecs() {
#define OCTAVO_UNDER_TEST(name, ...) under_test<BlockCodec::name>(#name),
  return {OCTAVO_BLOCK_CODECS(OCTAVO_UNDER_TEST)};
#undef OCTAVO_UNDER_TEST
}

}  // namespace octavo::conformance
