// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "octavo/rules/majority_vote.h"
#include "octavo/rules/plain_float.h"
#include "octavo/rules/scaled_sign.h"
#include "octavo/rules/symmetric_int.h"

/// All block codecs, a line each: adding one adds its rule's file and a line here. X(name, the name in a plan, rule)
///
/// int4 has one scale per 64 values. With 256, a block of an embedding held several rows, the scale of a frequent token
/// was too coarse for a rare one, and training could stop at a plateau (docs/quality.md).
#define OCTAVO_BLOCK_CODECS(X)                   \
  X(fp32, "fp32", rules::Fp32)                   \
  X(bf16, "bf16", rules::Bfloat16)               \
  X(sign, "sign", rules::ScaledSign)             \
  X(sign_vote, "sign-vote", rules::MajorityVote) \
  X(int4, "int4", rules::SymmetricInt<4, 64>)

namespace octavo {

enum class BlockCodec : std::uint8_t {
#define OCTAVO_ENUMERATOR(name, text, ...) name,
  OCTAVO_BLOCK_CODECS(OCTAVO_ENUMERATOR)
#undef OCTAVO_ENUMERATOR
};

/// RuleOf<BlockCodec::int4>::type is its rule.
template <BlockCodec codec>
struct RuleOf;
#define OCTAVO_RULE_OF(name, text, ...) \
  template <>                           \
  struct RuleOf<BlockCodec::name> {     \
    using type = __VA_ARGS__;           \
  };
OCTAVO_BLOCK_CODECS(OCTAVO_RULE_OF)
#undef OCTAVO_RULE_OF

#define OCTAVO_COUNT(...) +1
inline constexpr std::size_t kBlockCodecs = OCTAVO_BLOCK_CODECS(OCTAVO_COUNT);
#undef OCTAVO_COUNT

}  // namespace octavo
